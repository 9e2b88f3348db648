"""What the shop sells, who brings it, who buys it: values of slots, each in Chinese and English.

Both languages share a row, so price, colours and promises never differ between them. To add a
product or a city, add a row; nothing else has to change. Values whose checksum falls into the
held-out eighth never occur in training dialogues: the evaluation asks with those (is_held_out).
"""

import dataclasses
import zlib

HELD_OUT_SHARE = 8  # one value in so many is kept for the evaluation


def is_held_out(kind, value):
    """Whether this value of this kind of slot belongs to the evaluation alone."""
    return zlib.crc32(f"{kind}:{value}".encode()) % HELD_OUT_SHARE == 0


@dataclasses.dataclass(frozen=True)
class Product:
    zh: str
    en: str
    price: int  # yuan
    kind: str  # a key of WARRANTY
    colours: tuple  # keys of COLOURS: what the shop has
    feature_zh: str
    feature_en: str
    care_zh: str
    care_en: str


COLOURS = {
    "black": "黑色", "white": "白色", "blue": "蓝色", "grey": "灰色", "pink": "粉色",
    "green": "绿色", "red": "红色", "brown": "棕色",
}

# kind: promise in Chinese, in English
WARRANTY = {
    "electronics": ("保修一年", "it has a one year warranty"),
    "household": ("保修半年", "it has a six month warranty"),
    "clothing": ("三十天内可以退换", "it can be exchanged within thirty days"),
    "stationery": ("七天内可以退换", "it can be exchanged within seven days"),
}

PRODUCTS = (
    Product("蓝牙耳机", "Bluetooth headset", 199, "electronics", ("black", "white", "blue"),
            "充电一次能听二十四小时", "one charge lasts twenty-four hours",
            "用干布擦拭，不要进水", "wipe it with a dry cloth and keep it dry"),
    Product("保温杯", "thermos bottle", 89, "household", ("white", "green", "pink"),
            "可以保温十二小时", "it keeps drinks hot for twelve hours",
            "用温水和软刷清洗，不要放进洗碗机", "wash it with warm water and a soft brush"),
    Product("羊毛围巾", "wool scarf", 129, "clothing", ("red", "grey", "brown"),
            "用细羊毛织成，轻而保暖", "it is made of fine wool, light and warm",
            "冷水手洗，平铺晾干", "wash it by hand in cold water and dry it flat"),
    Product("机械键盘", "mechanical keyboard", 329, "electronics", ("black", "white", "grey"),
            "按键手感清脆，可以换轴", "its keys feel crisp and the switches can be changed",
            "用软毛刷清灰，不要泼水", "brush the dust out and keep liquids away"),
    Product("双肩包", "backpack", 159, "clothing", ("black", "blue", "green"),
            "防泼水，能放十五寸电脑", "it resists rain and holds a fifteen inch laptop",
            "用湿布擦拭，阴凉处晾干", "wipe it with a damp cloth and dry it in the shade"),
    Product("台灯", "desk lamp", 119, "household", ("white", "black", "pink"),
            "有三档亮度，不闪烁", "it has three levels of brightness and does not flicker",
            "断电后用干布擦拭", "unplug it and wipe it with a dry cloth"),
    Product("充电宝", "power bank", 139, "electronics", ("white", "black", "blue"),
            "容量一万毫安时，支持快充", "it holds ten thousand mAh and charges fast",
            "不要受潮，不要高温暴晒", "keep it dry and away from heat"),
    Product("运动上衣", "running shirt", 169, "clothing", ("white", "black", "red"),
            "速干透气，不闷汗", "it dries fast and breathes well",
            "三十度机洗，不要熨烫", "wash it at thirty degrees and do not iron it"),
    Product("电热水壶", "electric kettle", 109, "household", ("white", "green", "grey"),
            "五分钟烧开一升半水", "it boils one and a half litres in five minutes",
            "每月用柠檬酸除一次水垢", "remove the scale with citric acid once a month"),
    Product("智能手表", "smart watch", 499, "electronics", ("black", "pink", "green"),
            "能测心率和睡眠，续航七天", "it tracks heart rate and sleep and lasts seven days",
            "表带用清水冲洗后擦干", "rinse the strap with water and dry it"),
    Product("棉被", "cotton quilt", 239, "household", ("white", "blue", "grey"),
            "填充纯棉，柔软透气", "it is filled with pure cotton, soft and airy",
            "经常晾晒，不要机洗", "air it often and do not machine wash it"),
    Product("雨伞", "umbrella", 59, "household", ("black", "blue", "red"),
            "十根伞骨，能抗大风", "its ten ribs stand up to strong wind",
            "用完撑开晾干再收", "dry it open before you fold it"),
    Product("无线鼠标", "wireless mouse", 79, "electronics", ("black", "white", "pink"),
            "静音按键，一节电池用半年", "its buttons are silent and one battery lasts half a year",
            "用酒精棉擦拭，不要进水", "clean it with an alcohol wipe"),
    Product("牛皮钱包", "leather wallet", 189, "clothing", ("brown", "black", "blue"),
            "头层牛皮，有八个卡位", "it is full grain leather with eight card slots",
            "用皮革油保养，不要泡水", "treat it with leather balm and keep it dry"),
    Product("不粘锅", "non-stick pan", 209, "household", ("black", "grey", "red"),
            "少油不粘，燃气和电磁炉都能用", "it needs little oil and works on gas and induction",
            "用木铲和软海绵，不要用钢丝球", "use a wooden spatula and a soft sponge"),
    Product("瑜伽垫", "yoga mat", 99, "household", ("pink", "green", "blue"),
            "厚八毫米，防滑没有异味", "it is eight millimetres thick, does not slip or smell",
            "用湿布擦净，卷起存放", "wipe it with a damp cloth and store it rolled up"),
    Product("羽绒服", "down jacket", 599, "clothing", ("black", "red", "white"),
            "九成白鸭绒，零下十度也暖和", "ninety percent duck down keeps you warm at minus ten",
            "装洗衣袋轻柔机洗，低温烘干", "wash it gently in a laundry bag and dry it on low"),
    Product("笔记本", "notebook", 29, "stationery", ("brown", "blue", "green"),
            "纸张厚实，不会透墨", "its paper is thick and ink does not bleed through",
            "放在干燥的地方", "keep it in a dry place"),
    Product("钢笔", "fountain pen", 149, "stationery", ("black", "blue", "red"),
            "书写顺滑，送两支墨囊", "it writes smoothly and comes with two cartridges",
            "每月用清水冲洗笔尖", "rinse the nib with water once a month"),
    Product("音箱", "speaker", 299, "electronics", ("black", "grey", "blue"),
            "低音浑厚，可以连续播放十小时", "its bass is deep and it plays for ten hours",
            "用干布擦拭，避免灰尘", "wipe it with a dry cloth and keep dust away"),
    Product("加湿器", "humidifier", 179, "household", ("white", "green", "pink"),
            "一箱水可以用十二小时", "one tank of water lasts twelve hours",
            "每天换水，每周清洗水箱", "change the water daily and clean the tank weekly"),
    Product("电动牙刷", "electric toothbrush", 219, "electronics", ("white", "pink", "blue"),
            "有四种模式，充满电用一个月", "it has four modes and a charge lasts a month",
            "刷头三个月换一次", "change the brush head every three months"),
    Product("毛巾", "towel", 39, "household", ("white", "grey", "brown"),
            "纯棉加厚，吸水快", "it is thick pure cotton and absorbs water fast",
            "单独清洗，不用柔顺剂", "wash it separately and without softener"),
    Product("帽子", "hat", 69, "clothing", ("black", "brown", "grey"),
            "防晒透气，可以折叠", "it shades from the sun, breathes and folds",
            "手洗后撑开晾干", "wash it by hand and dry it in shape"),
)

# Chinese, English
COURIERS = (
    ("顺达快递", "Shunda Express"), ("飞羽速运", "Feiyu Courier"),
    ("中联物流", "Zhonglian Logistics"), ("捷通快运", "Jetway Post"),
    ("云雀速递", "Skylark Delivery"),
)

CITIES = (
    ("北京", "Beijing"), ("上海", "Shanghai"), ("广州", "Guangzhou"), ("深圳", "Shenzhen"),
    ("杭州", "Hangzhou"), ("成都", "Chengdu"), ("武汉", "Wuhan"), ("西安", "Xi'an"),
    ("南京", "Nanjing"), ("重庆", "Chongqing"), ("长沙", "Changsha"), ("郑州", "Zhengzhou"),
    ("青岛", "Qingdao"), ("厦门", "Xiamen"), ("苏州", "Suzhou"), ("天津", "Tianjin"),
    ("合肥", "Hefei"), ("昆明", "Kunming"), ("沈阳", "Shenyang"), ("大连", "Dalian"),
    ("济南", "Jinan"), ("福州", "Fuzhou"), ("南昌", "Nanchang"), ("贵阳", "Guiyang"),
    ("太原", "Taiyuan"), ("宁波", "Ningbo"), ("无锡", "Wuxi"), ("海口", "Haikou"),
    ("南宁", "Nanning"), ("兰州", "Lanzhou"), ("长春", "Changchun"), ("石家庄", "Shijiazhuang"),
)

STREETS = (
    ("人民路", "Renmin Road"), ("中山路", "Zhongshan Road"), ("解放路", "Jiefang Road"),
    ("花园路", "Garden Road"), ("长江路", "Changjiang Road"), ("建设路", "Jianshe Road"),
    ("和平路", "Heping Road"), ("新华路", "Xinhua Road"), ("学院路", "College Road"),
    ("湖滨路", "Lakeside Road"), ("东风路", "Dongfeng Road"), ("文化路", "Wenhua Road"),
)

# A surname and a given name each; English given names stand alone.
SURNAMES_ZH = tuple("王李张刘陈杨赵黄周吴徐孙马朱胡林郭何高罗")
GIVEN_ZH = ("明", "芳", "伟", "丽", "强", "静", "军", "敏", "杰", "婷", "涛", "雪", "磊", "兰",
            "平", "红", "小明", "小红", "文华", "建国", "玉兰", "志强", "春梅", "海燕")
NAMES_EN = (
    "Alice", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Ivy", "Jack", "Kate",
    "Leo", "Mary", "Nick", "Olivia", "Paul", "Rose", "Sam", "Tina", "Victor", "Wendy", "Anna",
    "Bob", "Chris", "Diana", "Eric", "Fiona", "George", "Helen", "Ian", "Julia", "Kevin", "Lucy",
    "Mark", "Nora", "Oscar", "Peter", "Ruth", "Simon", "Tom", "Vera", "Will", "Zoe", "Adam",
)

# state: Chinese, English, how far the parcel is in Chinese, in English, what the day means to each
STATES = {
    "waiting": ("待发货", "waiting to ship", "正在仓库备货", "it is being packed in our warehouse",
                "发货", "Ships"),
    "moving": ("运输中", "in transit", "已经到达{city}", "it has reached {city}", "送达", "Arrives"),
    "arriving": ("派送中", "out for delivery", "快递员正在{city}派送",
                 "the courier is delivering it in {city}", "送达", "Arrives"),
    "done": ("已签收", "delivered", "包裹已经签收", "the parcel has been signed for", "签收",
             "Delivered"),
}

MONTHS_EN = ("January", "February", "March", "April", "May", "June", "July", "August",
             "September", "October", "November", "December")

# Letters of codes: none that looks like a digit; the two kinds of code share none.
ORDER_LETTERS = "ABCDEFGHJKLM"
TRACKING_LETTERS = "NPQRSTUVWXYZ"

# Whom a present is for: Chinese, English
PERSONS = (
    ("妈妈", "my mother"), ("爸爸", "my father"), ("女朋友", "my girlfriend"),
    ("男朋友", "my boyfriend"), ("朋友", "a friend"), ("老师", "my teacher"), ("孩子", "my child"),
    ("同事", "a colleague"), ("奶奶", "my grandmother"), ("妹妹", "my sister"),
)

# What the shop does not sell: Chinese, English
FOREIGN = (
    ("手机", "phones"), ("汽车", "cars"), ("苹果", "apples"), ("自行车", "bicycles"),
    ("电视", "televisions"), ("冰箱", "fridges"), ("猫粮", "cat food"), ("药", "medicine"),
    ("香水", "perfume"), ("吉他", "guitars"), ("沙发", "sofas"), ("牛奶", "milk"),
    ("机票", "plane tickets"), ("鲜花", "flowers"), ("电脑", "computers"), ("相机", "cameras"),
    ("裙子", "skirts"), ("白酒", "spirits"), ("玩具", "toys"), ("米", "rice"), ("床", "beds"),
    ("轮胎", "tyres"), ("蛋糕", "cakes"), ("咖啡机", "coffee machines"), ("袜子", "socks"),
)

# How customers call what they wait for.
THINGS_ZH = ("快递", "包裹", "货", "东西", "我买的东西")
THINGS_EN = ("parcel", "package", "order", "delivery")
