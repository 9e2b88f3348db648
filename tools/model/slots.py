"""Values for the slots of one dialogue, and the card that shows them to the assistant.

Drawn from tables.py with the random generator of the caller. A training dialogue has no value of
the held-out part, an evaluation question has only such values where its kind has any. Some of a
training dialogue's words are made up, so that an answer has to copy them and cannot know them.
"""

import functools

import tables

CODE_DIGITS = "23456789"  # no 0 and 1, which are taken for letters


# Kinds of values that have a held-out part: all of them, and the name by which each is told apart.
KINDS = {
    "name_zh": ([s + g for s in tables.SURNAMES_ZH for g in tables.GIVEN_ZH], str),
    "name": (tables.NAMES_EN, str),
    "foreign": (tables.FOREIGN, lambda row: row[1]),
    "city": (tables.CITIES, lambda row: row[1]),
    "item": ([(p, c) for p in tables.PRODUCTS for c in p.colours], lambda i: i[0].en + i[1]),
    "cardprice": (range(20, 1000), str),
}


@functools.lru_cache(maxsize=None)
def part(kind, held_out):
    values, name = KINDS[kind]
    return [value for value in values
            if tables.is_held_out(kind.partition("_")[0], name(value)) == held_out]


MADE_UP = {"name": 0.25, "foreign": 0.4, "city": 0.3}  # how often a value is a word of nobody's


def words_of(value):
    return value if isinstance(value, tuple) else (value,)


@functools.lru_cache(maxsize=None)
def taken(kind):
    """Words that no made-up one may be: those held out, and what the shop sells."""
    return {word for value in part(kind, True) for word in words_of(value)}.union(
        *((product.zh, product.en) for product in tables.PRODUCTS))


def crossed(rng, one, other):
    """The beginning of one word and the end of another: "Kate" and "Simon" make "Kamon"."""
    return one[:rng.randrange(1, max(2, len(one)))] + other[rng.randrange(1, max(2, len(other))):]


def made_up(rng, kind):
    """Of two values that training may use, so that it has to be copied and cannot be known."""
    _, name = KINDS[kind]
    while True:
        pair = rng.sample(part(kind, False), 2)
        if isinstance(pair[0], str):
            value = crossed(rng, *pair)
        else:
            value = tuple(crossed(rng, *words) for words in zip(*pair))
        if not taken(kind).intersection(words_of(value)) and not tables.is_held_out(kind, name(value)):
            return value


def pick(rng, kind, held_out):
    if not held_out and rng.random() < MADE_UP.get(kind, 0):
        return made_up(rng, kind)
    return rng.choice(part(kind, held_out))


def code(rng, kind, held_out, letters, digits):
    """Digits and letters in turn, a digit at both ends, none twice: as 7B2K9.

    A digit at both ends keeps a code's tokens apart from the words around it, and as no character
    comes twice, what follows one in the code is known from that character alone.
    """
    while True:
        text = "".join(a + b for a, b in zip(digits, rng.sample(letters, len(digits) - 1) + [""]))
        if tables.is_held_out(kind, text) == held_out:
            return text


def enumerate_zh(words):
    return words[0] if len(words) == 1 else "、".join(words[:-1]) + "和" + words[-1]


def enumerate_en(words):
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


class Draw:
    """Draws one dialogue's values: `values["zh"]` and `values["en"]` hold the same things."""

    def __init__(self, rng, situation, held_out=False):
        self.rng, self.situation, self.held_out = rng, situation, held_out
        self.values = {"zh": {}, "en": {}}
        self.codes()
        self.people()
        self.delivery()
        self.goods()
        self.card_product()

    def set(self, slot, zh, en=None):
        self.values["zh"][slot] = zh
        self.values["en"][slot] = zh if en is None else en

    def codes(self):
        digits = self.rng.sample(CODE_DIGITS, 7)
        self.set("order", code(self.rng, "order", self.held_out, tables.ORDER_LETTERS, digits[:3]))
        self.set("tracking",
                 code(self.rng, "tracking", self.held_out, tables.TRACKING_LETTERS, digits[3:]))

    def people(self):
        zh = pick(self.rng, "name_zh", self.held_out)
        en = pick(self.rng, "name", self.held_out)
        self.set("name", zh, en)
        self.set("person", *self.rng.choice(tables.PERSONS))
        self.set("foreign", *pick(self.rng, "foreign", self.held_out))

    def city(self):
        return pick(self.rng, "city", self.held_out)

    def delivery(self):
        rng, city = self.rng, self.city()
        self.set("city", *city)
        self.set("courier", *rng.choice(tables.COURIERS))
        month, date = rng.randrange(1, 13), rng.randrange(1, 29)
        self.set("day", f"{month}月{date}日", f"{date} {tables.MONTHS_EN[month - 1]}")
        state = self.situation if self.situation in tables.STATES else "moving"
        zh, en, progress_zh, progress_en, *_ = tables.STATES[state]
        self.set("state", zh, en)
        self.set("progress", progress_zh.format(city=city[0]), progress_en.format(city=city[1]))
        there, street, number = self.city(), rng.choice(tables.STREETS), rng.randrange(1, 300)
        self.set("address", f"{there[0]}{street[0]}{number}号", f"{number} {street[1]}, {there[1]}")

    def goods(self):
        """A product of the shop, what it costs, and which colours there are."""
        rng = self.rng
        product, other = rng.sample(tables.PRODUCTS, 2)
        if self.situation in tables.STATES:
            product, colour = pick(rng, "item", self.held_out)
        else:
            colour = rng.choice(product.colours)
        lacking = rng.choice([c for c in tables.COLOURS if c not in product.colours])
        new = rng.choice([c for c in product.colours if c != colour])
        count = rng.randrange(1, 10)
        self.set("product", product.zh, product.en)
        self.set("other", other.zh, other.en)
        for slot, key in (("colour", colour), ("havecolour", colour), ("lackcolour", lacking),
                          ("newcolour", new)):
            self.set(slot, tables.COLOURS[key], key)
        self.set("colours", enumerate_zh([tables.COLOURS[c] for c in product.colours]),
                 enumerate_en(product.colours))
        self.set("item", tables.COLOURS[colour] + product.zh, f"{colour} {product.en}")
        self.set("price", product.price)
        self.set("otherprice", other.price)
        self.set("qty", count)
        self.set("total", count * product.price)
        self.set("feature", product.feature_zh, product.feature_en)
        self.set("care", product.care_zh, product.care_en)
        self.set("warranty", *tables.WARRANTY[product.kind])
        waiting = ["快递", "包裹", "货", "东西"], ["parcel", "package", "order", "delivery"]
        if self.situation == "none":
            waiting = waiting[0] + [product.zh], waiting[1] + [product.en]
        self.set("thing", rng.choice(waiting[0]), rng.choice(waiting[1]))

    def card_product(self):
        """What a product card says: its own price and two colours, whatever the table has."""
        rng = self.rng
        self.set("cardprice", pick(rng, "cardprice", self.held_out))
        self.set("stock", rng.randrange(2, 500))
        colours = rng.sample(list(tables.COLOURS), 2)
        self.set("cardcolours", enumerate_zh([tables.COLOURS[c] for c in colours]),
                 enumerate_en(colours))


CARDS = {
    "zh": {
        "product": ("商品：{product}", "价格：{cardprice}元", "颜色：{cardcolours}", "库存：{stock}件"),
        "order": ("订单号：{order}", "商品：{item}", "数量：{qty}件", "金额：{total}元",
                  "状态：{state}", "收货人：{name}"),
        "shipped": ("快递：{courier}", "单号：{tracking}", "位置：{city}"),
        "day": "日：{day}",
    },
    "en": {
        "product": ("Product: {product}", "Price: {cardprice} yuan", "Colours: {cardcolours}",
                    "Stock: {stock}"),
        "order": ("Order: {order}", "Item: {item}", "Quantity: {qty}", "Total: {total} yuan",
                  "Status: {state}", "Name: {name}"),
        "shipped": ("Courier: {courier}", "Tracking: {tracking}", "City: {city}"),
        "day": ": {day}",
    },
}


def card(language, situation, values, rng):
    """The lines of the card, in their order or, once in four times, in another."""
    layout = CARDS[language]
    if situation == "none":
        return []
    if situation == "product":
        lines = list(layout["product"])
    else:
        *_, day_zh, day_en = tables.STATES[situation]
        lines = list(layout["order"])
        if situation != "waiting":
            lines += layout["shipped"]
        lines.append((day_zh if language == "zh" else day_en) + layout["day"])
    if rng.random() < 0.25:
        rng.shuffle(lines)
    return [line.format(**values) for line in lines]
