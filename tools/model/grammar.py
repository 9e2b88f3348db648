"""The notation of grammar/*.txt: templates with alternatives and slots, gathered into intents.

A template is text in which [a|b|] stands for one of the alternatives (which may nest and be empty)
and {slot} for a value that is fixed per dialogue. A file is a list of intents:

    intent NAME              what a customer wants
    zh? ... / en? ...        a question (a template); zh! / en! one that only the evaluation asks
    @ SITUATION...           what the assistant knows: none, product or order (a card in the system
                             prompt), or order with one of the states waiting moving arriving done
    zh= ... / en= ...        an answer in this situation
    zh& a|b, c               the evaluation wants one of "a", "b" in the answer, and "c"
    --                       the customer may go on in this situation: questions, answers, words
    free SLOT...             the answer may choose these values itself

Files of knowledge write "ask NAME" for a list of questions about a {term}, and "term CHINESE |
ENGLISH" for an intent that is asked for in those ways ("ask NAME" below it chooses which). Lines
that begin with # and empty lines do not count. A mistake is an error that names file and line.
"""

import dataclasses
import pathlib
import re

FOLDER = pathlib.Path(__file__).parent / "grammar"
LANGUAGES = ("zh", "en")
STATES = ("waiting", "moving", "arriving", "done")
SITUATIONS = ("none", "product") + STATES

TOKEN = re.compile(r"\[|\]|\||\{\w+\}|[^\[\]|{}]+")


class GrammarError(Exception):
    """A template or a file that does not follow the notation."""


# Templates ---------------------------------------------------------------------------------------


class Template:
    """Text with alternatives and slots, parsed once."""

    def __init__(self, text):
        self.text = text
        tokens = TOKEN.findall(text)
        if "".join(tokens) != text:
            raise GrammarError(f"a brace without its slot in {text!r}")
        options, rest = self._options(tokens)
        if rest or len(options) != 1:
            raise GrammarError(f"brackets do not match in {text!r}")
        self.parts = options[0]

    def _options(self, tokens):
        """Alternatives up to the closing bracket or the end: a list of lists of parts."""
        options, parts = [], []
        while tokens:
            token = tokens.pop(0)
            if token == "[":
                inner, closed = self._options(tokens)
                if not closed:
                    raise GrammarError(f"an open bracket in {self.text!r}")
                parts.append(inner)
            elif token == "]":
                return options + [parts], True
            elif token == "|":
                options.append(parts)
                parts = []
            else:
                parts.append(token)
        return options + [parts], False

    def expand(self, values, rng):
        """One of the texts, with the slots' values filled in."""
        return self._expand(self.parts, values, rng)

    def _expand(self, parts, values, rng):
        out = []
        for part in parts:
            if isinstance(part, list):
                out.append(self._expand(rng.choice(part), values, rng))
            elif part[0] == "{":
                out.append(str(values[part[1:-1]]))
            else:
                out.append(part)
        return "".join(out)

    def texts(self):
        """All texts, with the slots' names in them."""
        return self._texts(self.parts)

    def _texts(self, parts):
        found = [""]
        for part in parts:
            more = [part] if isinstance(part, str) else [
                text for option in part for text in self._texts(option)]
            found = [text + end for text in found for end in more]
        return found

    def forms(self):
        """How many texts there are, slots counted once."""
        return self._forms(self.parts)

    def _forms(self, parts):
        product = 1
        for part in parts:
            if isinstance(part, list):
                product *= sum(self._forms(option) for option in part)
        return product

    def sure_slots(self):
        """The slots that are in each of the texts."""
        return self._sure_slots(self.parts)

    def _sure_slots(self, parts):
        sure = set()
        for part in parts:
            if isinstance(part, list):
                sure |= set.intersection(*(self._sure_slots(option) for option in part))
            elif part[0] == "{":
                sure.add(part[1:-1])
        return sure


# Intents -----------------------------------------------------------------------------------------


def by_language():
    return {language: [] for language in LANGUAGES}


@dataclasses.dataclass
class Turn:
    """A question and its answer: templates by language, and the words an answer must have."""

    questions: dict = dataclasses.field(default_factory=by_language)
    held_out: dict = dataclasses.field(default_factory=by_language)
    answers: dict = dataclasses.field(default_factory=by_language)
    keys: dict = dataclasses.field(default_factory=by_language)


@dataclasses.dataclass
class Case:
    """What an intent comes to in some situations: one turn, and those that may follow."""

    situations: tuple
    turns: list


@dataclasses.dataclass
class Intent:
    name: str
    topic: str  # the file's name
    term: dict = dataclasses.field(default_factory=dict)  # language: value of {term}
    questions: Turn = dataclasses.field(default_factory=Turn)
    cases: list = dataclasses.field(default_factory=list)
    free: tuple = ()


def situations_of(words):
    chosen = []
    states = [word for word in words if word in STATES]
    for word in words:
        if word == "order":
            chosen += [] if states else STATES
        elif word in SITUATIONS:
            chosen.append(word)
        else:
            raise GrammarError(f"no such situation: {word}")
    return tuple(chosen)


class Reader:
    """Reads one file; `turn` is where lines with templates go at the moment."""

    def __init__(self, path):
        self.path, self.topic = path, path.stem
        self.intents, self.asks = [], {}
        self.intent = self.turn = self.case = None

    def read(self):
        for number, line in enumerate(self.path.read_text().split("\n"), 1):
            if line.strip() and not line.startswith("#"):
                try:
                    self.line(line.rstrip())
                except GrammarError as error:
                    raise GrammarError(f"{self.path}:{number}: {error}") from None
        for intent in self.intents:
            self.check(intent)
        return self.intents

    def begin(self, intent):
        self.intents.append(intent)
        self.intent, self.turn, self.case = intent, intent.questions, None

    def line(self, line):
        word, _, rest = line.partition(" ")
        if word == "intent":
            self.begin(Intent(rest, self.topic))
        elif word == "term":
            zh, _, en = rest.partition(" | ")
            self.begin(Intent(en.replace(" ", "_"), self.topic, {"zh": zh, "en": en},
                              self.asks["term"]))
            self.situation(("none", "product", "order"))
        elif word == "ask" and self.intent and self.intent.term:
            self.intent.questions = self.asks[rest]
            self.case.turns[0].questions = self.asks[rest].questions
            self.case.turns[0].held_out = self.asks[rest].held_out
        elif word == "ask":
            self.turn = self.asks[rest] = Turn()
        elif word == "@":
            self.situation(rest.split())
        elif word == "--":
            self.turn = Turn()
            self.case.turns.append(self.turn)
        elif word == "free":
            self.intent.free = tuple(rest.split())
        elif line[:2] in LANGUAGES and line[2:4] in ("? ", "! ", "= ", "& "):
            self.template(line[:2], line[2], line[4:])
        else:
            raise GrammarError(f"cannot read {line!r}")

    def situation(self, words):
        asked = self.intent.questions
        self.turn = Turn(asked.questions, asked.held_out)
        self.case = Case(situations_of(words), [self.turn])
        self.intent.cases.append(self.case)

    def template(self, language, mark, text):
        if mark == "&":
            self.turn.keys[language] = [
                [Template(word.strip()) for word in group.split("|")] for group in text.split(",")]
        else:
            where = {"?": self.turn.questions, "!": self.turn.held_out, "=": self.turn.answers}
            where[mark][language].append(Template(text))

    def check(self, intent):
        for case in intent.cases:
            for turn in case.turns:
                for language in LANGUAGES:
                    if not (turn.questions[language] and turn.answers[language]
                            and turn.keys[language]):
                        raise GrammarError(f"{self.path}: {intent.name}: a turn lacks {language}")


def load(folder=FOLDER):
    """All intents of all files, in the order of their names and lines."""
    intents = []
    for path in sorted(folder.glob("*.txt")):
        intents += Reader(path).read()
    return intents


def question_templates(intents):
    """Every question of the grammar once: (training, held out) as sets of (language, text)."""
    training, held_out = set(), set()
    for intent in intents:
        for turn in [turn for case in intent.cases for turn in case.turns]:
            for language in LANGUAGES:
                training |= {(language, t.text) for t in turn.questions[language]}
                held_out |= {(language, t.text) for t in turn.held_out[language]}
    return training, held_out
