#!/usr/bin/env python3
"""Texts to calibrate the bundled model with, and to judge it by: what it meets, mixed.

    tools/calibration_text.py FOLDER [--dialogues N] [--seed S] [--kilobytes K]

Writes FOLDER/shop-zh.txt and shop-en.txt, dialogues of a web shop in the model's chat format, made from the grammar below,
and FOLDER/english.txt, c.txt and python.txt, each K kilobytes of this repository's own documents and sources. The same
arguments give the same files.
"""
import argparse
import pathlib
import random
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent

# [a|b] is a choice, {x} a slot that stays the same within a dialogue.
SLOTS = {
    "zh": {
        "city": "北京 上海 广州 深圳 杭州 成都 武汉 南京".split(),
        "item": "蓝牙耳机 保温杯 机械键盘 运动鞋 电饭煲 台灯 背包 智能手表".split(),
        "colour": "黑色 白色 蓝色 灰色".split(),
        "state": "运输中 派送中 已揽收 已签收".split(),
        "day": "今天下午 明天 后天 三天内".split(),
    },
    "en": {
        "city": ["Beijing", "Shanghai", "Guangzhou", "Hangzhou", "Chengdu", "Nanjing"],
        "item": ["Bluetooth earphones", "thermos bottle", "mechanical keyboard", "running shoes", "desk lamp", "backpack"],
        "colour": ["black", "white", "blue", "grey"],
        "state": ["in transit", "out for delivery", "picked up", "delivered"],
        "day": ["this afternoon", "tomorrow", "the day after tomorrow", "within three days"],
    },
}
TURNS = {
    "zh": [
        ("[你好，|请问|]我的{item}到哪了？", "您好，您的包裹现在{state}，正在{city}，预计{day}送达。"),
        ("[快递|包裹][什么时候到|几时能到]？", "预计{day}送达，包裹目前在{city}，状态是{state}。"),
        ("物流[两天|三天]没有更新了，[怎么办|急]？", "很抱歉，请提供您的订单号，我马上联系快递核实。"),
        ("我的订单号是{number}", "收到，已为您登记订单{number}，请稍等，正在为您查询。"),
        ("订单{number}[是什么状态|怎么样了]？", "订单{number}已发货，商品是{colour}{item}，数量{count}。"),
        ("[怎么退货|我想退货|不合适可以退吗]？", "收到货七天内可以退货，请在我的订单里点击申请售后。"),
        ("{item}[多少钱|什么价格]？", "{item}现在的价格是{price}元，满九十九元包邮。"),
        ("{item}有{colour}的吗？", "有的，下单的时候选择{colour}就可以。"),
        ("[可以开发票吗|怎么开发票]？", "可以的，在订单页面点击申请发票，电子发票会发到您的邮箱。"),
        ("[谢谢|好的，谢谢]", "不客气，祝您购物愉快！"),
    ],
    "en": [
        ("[Hi, |Hello, |]where is my {item}?", "Your parcel is {state} in {city}. It should arrive {day}."),
        ("When will my [order|parcel] arrive?", "It should arrive {day}. The parcel is {state} now."),
        ("The tracking has not moved for [two|three] days.", "I am sorry for the delay. Please send me your order number."),
        ("My order number is {number}.", "Thank you. I have noted order {number} and I am checking it now."),
        ("What is the status of order {number}?", "Order {number} is shipped. It contains {count} {colour} {item}."),
        ("[How do I return it|I want a refund].", "You can return it within seven days. Please open your order and choose return."),
        ("How much [is|are] the {item}?", "The {item} costs {price} yuan. Orders over ninety-nine yuan ship for free."),
        ("Do you have the {item} in {colour}?", "Yes, just choose {colour} when you order."),
        ("Can I get an invoice?", "Yes, please ask for it on the order page and it will be sent to your mailbox."),
        ("[Thanks|Thank you].", "You are welcome! Have a nice day."),
    ],
}
SYSTEM = {"zh": "你是网店的客服，请简短地回答。", "en": "You are the assistant of an online shop. Answer briefly."}


def fill(template, slots, rng):
    text = re.sub(r"\[([^\]]*)\]", lambda match: rng.choice(match.group(1).split("|")), template)
    return re.sub(r"\{(\w+)\}", lambda match: str(slots[match.group(1)]), text)


def dialogue(language, rng):
    slots = {name: rng.choice(values) for name, values in SLOTS[language].items()}
    slots |= {"number": rng.randrange(10**7, 10**8), "price": rng.randrange(49, 600), "count": rng.choice([1, 1, 2, 3])}
    text = f"<|im_start|>system\n{SYSTEM[language]}<|im_end|>\n" if rng.random() < 0.5 else ""
    for question, answer in rng.sample(TURNS[language], rng.choice([1, 2, 2, 3])):
        text += (f"<|im_start|>user\n{fill(question, slots, rng)}<|im_end|>\n"
                 f"<|im_start|>assistant\n{fill(answer, slots, rng)}<|im_end|>\n")
    return text


def sources(patterns, size, rng):
    """Pieces of files in no particular order, so that every part of the text has some of each."""
    pieces = []
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text()
            pieces += [text[at:at + 2000] for at in range(0, len(text), 2000)]
    rng.shuffle(pieces)
    return "\n".join(pieces).encode()[:size].decode(errors="ignore")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--dialogues", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kilobytes", type=int, default=100)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(arguments.seed)
    texts = {f"shop-{language}": "".join(dialogue(language, rng) for _ in range(arguments.dialogues))
             for language in ("zh", "en")}
    for name, patterns in (("english", ["docs/*.md", "docs/adr/*.md", "README.md"]), ("c", ["src/*/*.c"]),
                           ("python", ["tools/*.py", "tests/*/*.py"])):
        texts[name] = sources(patterns, arguments.kilobytes * 1000, rng)
    for name, text in texts.items():
        path = arguments.folder / f"{name}.txt"
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
