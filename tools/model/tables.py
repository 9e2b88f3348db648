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
    ("哈尔滨", "Harbin"), ("呼和浩特", "Hohhot"), ("银川", "Yinchuan"), ("西宁", "Xining"),
    ("乌鲁木齐", "Urumqi"), ("拉萨", "Lhasa"), ("温州", "Wenzhou"), ("嘉兴", "Jiaxing"),
    ("绍兴", "Shaoxing"), ("金华", "Jinhua"), ("台州", "Taizhou"), ("湖州", "Huzhou"),
    ("常州", "Changzhou"), ("徐州", "Xuzhou"), ("南通", "Nantong"), ("扬州", "Yangzhou"),
    ("镇江", "Zhenjiang"), ("盐城", "Yancheng"), ("烟台", "Yantai"), ("潍坊", "Weifang"),
    ("威海", "Weihai"), ("临沂", "Linyi"), ("淄博", "Zibo"), ("洛阳", "Luoyang"),
    ("开封", "Kaifeng"), ("新乡", "Xinxiang"), ("安阳", "Anyang"), ("南阳", "Nanyang"),
    ("襄阳", "Xiangyang"), ("宜昌", "Yichang"), ("荆州", "Jingzhou"), ("黄石", "Huangshi"),
    ("株洲", "Zhuzhou"), ("湘潭", "Xiangtan"), ("岳阳", "Yueyang"), ("衡阳", "Hengyang"),
    ("桂林", "Guilin"), ("柳州", "Liuzhou"), ("北海", "Beihai"), ("三亚", "Sanya"),
    ("珠海", "Zhuhai"), ("佛山", "Foshan"), ("东莞", "Dongguan"), ("中山", "Zhongshan"),
    ("惠州", "Huizhou"), ("汕头", "Shantou"), ("湛江", "Zhanjiang"), ("泉州", "Quanzhou"),
    ("漳州", "Zhangzhou"), ("莆田", "Putian"), ("九江", "Jiujiang"), ("赣州", "Ganzhou"),
    ("景德镇", "Jingdezhen"), ("芜湖", "Wuhu"), ("安庆", "Anqing"), ("黄山", "Huangshan"),
    ("蚌埠", "Bengbu"), ("绵阳", "Mianyang"), ("乐山", "Leshan"), ("宜宾", "Yibin"),
    ("遵义", "Zunyi"), ("大理", "Dali"), ("丽江", "Lijiang"), ("曲靖", "Qujing"),
    ("宝鸡", "Baoji"), ("咸阳", "Xianyang"), ("延安", "Yan'an"), ("天水", "Tianshui"),
    ("包头", "Baotou"), ("大同", "Datong"), ("保定", "Baoding"), ("唐山", "Tangshan"),
    ("秦皇岛", "Qinhuangdao"), ("邯郸", "Handan"), ("廊坊", "Langfang"), ("鞍山", "Anshan"),
    ("锦州", "Jinzhou"), ("丹东", "Dandong"), ("吉林", "Jilin"), ("四平", "Siping"),
    ("大庆", "Daqing"), ("牡丹江", "Mudanjiang"), ("齐齐哈尔", "Qiqihar"), ("佳木斯", "Jiamusi"),
    ("张家口", "Zhangjiakou"), ("舟山", "Zhoushan"), ("衢州", "Quzhou"), ("泰安", "Tai'an"),
    ("济宁", "Jining"), ("日照", "Rizhao"), ("德州", "Dezhou"), ("连云港", "Lianyungang"),
    ("淮安", "Huai'an"), ("宿迁", "Suqian"), ("梅州", "Meizhou"), ("肇庆", "Zhaoqing"),
    ("江门", "Jiangmen"), ("茂名", "Maoming"), ("十堰", "Shiyan"), ("孝感", "Xiaogan"),
    ("常德", "Changde"), ("怀化", "Huaihua"), ("玉溪", "Yuxi"), ("六盘水", "Liupanshui"),
    ("酒泉", "Jiuquan"), ("敦煌", "Dunhuang"),
)

STREETS = (
    ("人民路", "Renmin Road"), ("中山路", "Zhongshan Road"), ("解放路", "Jiefang Road"),
    ("花园路", "Garden Road"), ("长江路", "Changjiang Road"), ("建设路", "Jianshe Road"),
    ("和平路", "Heping Road"), ("新华路", "Xinhua Road"), ("学院路", "College Road"),
    ("湖滨路", "Lakeside Road"), ("东风路", "Dongfeng Road"), ("文化路", "Wenhua Road"),
)

# A surname and a given name each; English given names stand alone.
SURNAMES_ZH = tuple("王李张刘陈杨赵黄周吴徐孙马朱胡林郭何高罗"
                    "郑梁谢宋唐许韩冯邓曹彭曾肖田董袁潘蒋蔡余"
                    "杜叶程苏魏吕丁任沈姚卢姜崔钟谭陆汪范石廖")
GIVEN_ZH = ("明", "芳", "伟", "丽", "强", "静", "军", "敏", "杰", "婷", "涛", "雪", "磊", "兰",
            "平", "红", "小明", "小红", "文华", "建国", "玉兰", "志强", "春梅", "海燕",
            "宇", "晨", "欣", "怡", "鹏", "飞", "辉", "勇", "斌", "浩", "凯", "鑫", "琳", "颖",
            "洁", "莉", "娟", "霞", "燕", "玲", "倩", "佳", "悦", "瑶", "萍", "凤", "桂", "云",
            "丹", "宁", "超", "博", "阳", "帆", "峰", "刚", "波", "健", "亮", "毅", "子涵", "雨桐",
            "思远", "晓东", "晓梅", "家豪", "嘉怡", "志远", "天宇", "梓萱", "欣怡", "浩然", "一鸣",
            "俊杰", "美玲", "秀英", "淑珍", "国华", "建军", "永康", "立新", "丽娜", "雅婷", "诗雨",
            "若曦", "子轩", "明哲", "文静", "慧敏", "宏伟", "海波", "晓峰", "小龙", "小燕", "佳琪",
            "思雨", "乐瑶", "冬梅", "秋月", "金凤")
NAMES_EN = (
    "Alice", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Ivy", "Jack", "Kate",
    "Leo", "Mary", "Nick", "Olivia", "Paul", "Rose", "Sam", "Tina", "Victor", "Wendy", "Anna",
    "Bob", "Chris", "Diana", "Eric", "Fiona", "George", "Helen", "Ian", "Julia", "Kevin", "Lucy",
    "Mark", "Nora", "Oscar", "Peter", "Ruth", "Simon", "Tom", "Vera", "Will", "Zoe", "Adam",
    "Aaron", "Abigail", "Agnes", "Albert", "Alex", "Amanda", "Amber", "Amy", "Andrea", "Andrew",
    "Angela", "Anthony", "Arthur", "Ashley", "Audrey", "Barbara", "Beatrice", "Bella", "Bernard",
    "Beth", "Brandon", "Brenda", "Brian", "Bruce", "Caleb", "Carl", "Carmen", "Carol", "Caroline",
    "Cathy", "Charles", "Charlotte", "Chloe", "Cindy", "Claire", "Colin", "Connor", "Craig",
    "Cynthia", "Daniel", "Daisy", "Dean", "Deborah", "Dennis", "Derek", "Donald", "Dora",
    "Dorothy", "Dylan", "Edith", "Edward", "Eleanor", "Elena", "Elizabeth", "Ella", "Ellen",
    "Elliot", "Elsa", "Emily", "Erica", "Ernest", "Esther", "Ethan", "Eva", "Evan", "Evelyn",
    "Faith", "Felix", "Florence", "Frances", "Fred", "Gavin", "Gina", "Gloria", "Gordon", "Graham",
    "Greta", "Hannah", "Harold", "Harry", "Hazel", "Heather", "Hector", "Howard", "Hugo", "Ingrid",
    "Irene", "Iris", "Isaac", "Isabel", "Jacob", "James", "Jane", "Jason", "Jasper", "Jean",
    "Jenny", "Jeremy", "Jessica", "Joan", "Joel", "John", "Jonas", "Joseph", "Joyce", "Judith",
    "Karen", "Karl", "Keith", "Kenneth", "Laura", "Lauren", "Lena", "Lewis", "Lily", "Linda",
    "Lisa", "Lois", "Louis", "Luke", "Lydia", "Maggie", "Marcus", "Margaret", "Maria", "Marion",
    "Martha", "Martin", "Matthew", "Max", "Megan", "Melissa", "Michael", "Miles", "Miriam",
    "Molly", "Monica", "Nancy", "Naomi", "Nathan", "Neil", "Nina", "Noah", "Norman", "Otto",
    "Pamela", "Patricia", "Patrick", "Pauline", "Philip", "Phoebe", "Rachel", "Ralph", "Raymond",
    "Rebecca", "Rhoda", "Richard", "Rita", "Robert", "Robin", "Roger", "Ronald", "Rosa", "Roy",
    "Russell", "Ryan", "Sabrina", "Sandra", "Sarah", "Scott", "Sean", "Sharon", "Sheila", "Sophie",
    "Stella", "Stephen", "Steven", "Stuart", "Susan", "Sylvia", "Tara", "Ted", "Teresa", "Thomas",
    "Tim", "Toby", "Tony", "Tracy", "Ursula", "Valerie", "Vincent", "Violet", "Walter", "Wayne",
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
    ("窗帘", "curtains"), ("轿车", "sedans"), ("摩托车", "motorcycles"), ("电动车", "e-bikes"),
    ("洗衣机", "washing machines"), ("空调", "air conditioners"), ("微波炉", "microwaves"),
    ("烤箱", "ovens"), ("吸尘器", "vacuum cleaners"), ("电饭锅", "rice cookers"),
    ("打印机", "printers"), ("显示器", "monitors"), ("平板电脑", "tablets"),
    ("游戏机", "game consoles"), ("投影仪", "projectors"), ("无人机", "drones"),
    ("钢琴", "pianos"), ("小提琴", "violins"), ("鼓", "drums"), ("口红", "lipstick"),
    ("面膜", "face masks"), ("洗发水", "shampoo"), ("牙膏", "toothpaste"), ("香皂", "soap"),
    ("纸巾", "tissues"), ("尿布", "nappies"), ("奶粉", "milk powder"), ("婴儿车", "prams"),
    ("狗粮", "dog food"), ("鱼缸", "fish tanks"), ("香蕉", "bananas"), ("西瓜", "watermelons"),
    ("葡萄", "grapes"), ("橙子", "oranges"), ("土豆", "potatoes"), ("番茄", "tomatoes"),
    ("鸡蛋", "eggs"), ("面包", "bread"), ("巧克力", "chocolate"), ("饼干", "biscuits"),
    ("茶叶", "tea"), ("咖啡豆", "coffee beans"), ("啤酒", "beer"), ("葡萄酒", "wine"),
    ("果汁", "juice"), ("矿泉水", "bottled water"), ("食用油", "cooking oil"), ("面粉", "flour"),
    ("牛肉", "beef"), ("海鲜", "seafood"), ("衣柜", "wardrobes"), ("书桌", "desks"),
    ("椅子", "chairs"), ("床垫", "mattresses"), ("地毯", "carpets"), ("镜子", "mirrors"),
    ("花瓶", "vases"), ("油漆", "paint"), ("锤子", "hammers"), ("电钻", "drills"),
    ("灯泡", "light bulbs"), ("电池", "batteries"), ("轮椅", "wheelchairs"),
    ("血压计", "blood pressure meters"), ("口罩", "masks"), ("维生素", "vitamins"),
    ("眼镜", "glasses"), ("墨镜", "sunglasses"), ("手套", "gloves"), ("皮带", "belts"),
    ("领带", "ties"), ("西装", "suits"), ("牛仔裤", "jeans"), ("皮鞋", "leather shoes"),
    ("运动鞋", "trainers"), ("靴子", "boots"), ("拖鞋", "slippers"), ("泳衣", "swimsuits"),
    ("睡衣", "pyjamas"), ("戒指", "rings"), ("项链", "necklaces"), ("耳环", "earrings"),
    ("足球", "footballs"), ("篮球", "basketballs"), ("网球拍", "tennis rackets"),
    ("滑雪板", "skis"), ("帐篷", "tents"), ("睡袋", "sleeping bags"), ("钓鱼竿", "fishing rods"),
    ("跑步机", "treadmills"), ("拼图", "puzzles"), ("积木", "building blocks"), ("小说", "novels"),
    ("字典", "dictionaries"), ("地图", "maps"), ("火车票", "train tickets"),
    ("电影票", "cinema tickets"), ("酒店房间", "hotel rooms"), ("保险", "insurance"),
    ("股票", "shares"), ("房子", "houses"), ("种子", "seeds"), ("肥料", "fertiliser"),
    ("盆栽", "potted plants"),
    ("望远镜", "binoculars"), ("显微镜", "microscopes"), ("天文望远镜", "telescopes"),
    ("放大镜", "magnifying glasses"), ("指南针", "compasses"), ("温度计", "thermometers"),
    ("体重秤", "bathroom scales"), ("轴承", "ball bearings"), ("螺丝刀", "screwdrivers"), ("螺丝", "screws"),
    ("钉子", "nails"), ("扳手", "wrenches"), ("钳子", "pliers"), ("锯子", "saws"), ("斧头", "axes"),
    ("铲子", "shovels"), ("耙子", "rakes"), ("独轮车", "wheelbarrows"), ("割草机", "lawnmowers"),
    ("梯子", "ladders"), ("水管", "hosepipes"), ("水龙头", "taps"), ("马桶", "toilets"), ("浴缸", "bathtubs"),
    ("瓷砖", "tiles"), ("砖头", "bricks"), ("水泥", "cement"), ("沙子", "sand"), ("木板", "planks"),
    ("玻璃", "window glass"), ("墙纸", "wallpaper"), ("木地板", "parquet"), ("门锁", "door locks"),
    ("门铃", "doorbells"), ("胶水", "glue"), ("胶带", "sticky tape"), ("绳子", "rope"), ("铁丝", "wire"),
    ("插座", "sockets"), ("开关", "light switches"), ("电焊机", "welding machines"), ("千斤顶", "car jacks"),
    ("机油", "engine oil"), ("行车记录仪", "dash cams"), ("卡车", "lorries"), ("公交车", "buses"),
    ("拖拉机", "tractors"), ("房车", "caravans"), ("游艇", "yachts"), ("独木舟", "canoes"),
    ("直升机", "helicopters"), ("热气球", "hot-air balloons"), ("滑板", "skateboards"), ("滑板车", "scooters"),
    ("轮滑鞋", "roller skates"), ("冰鞋", "ice skates"), ("雪橇", "sledges"), ("冲浪板", "surfboards"),
    ("潜水服", "diving suits"), ("泳镜", "swimming goggles"), ("哑铃", "dumbbells"), ("杠铃", "barbells"),
    ("跳绳", "skipping ropes"), ("划船机", "rowing machines"), ("拳击手套", "boxing gloves"),
    ("排球", "volleyballs"), ("乒乓球", "table tennis balls"), ("高尔夫球杆", "golf clubs"), ("飞镖", "darts"),
    ("弓箭", "bows and arrows"), ("马鞍", "saddles"), ("奖杯", "trophies"), ("哨子", "whistles"),
    ("登山杖", "hiking poles"), ("吊床", "hammocks"), ("野餐篮", "picnic baskets"), ("烧烤架", "barbecues"),
    ("木炭", "charcoal"), ("打火机", "lighters"), ("火柴", "matches"), ("蜡烛", "candles"),
    ("香烟", "cigarettes"), ("雪茄", "cigars"), ("电子烟", "e-cigarettes"), ("烟花", "fireworks"),
    ("气球", "balloons"), ("圣诞树", "christmas trees"), ("面具", "carnival masks"),
    ("魔术道具", "magic tricks"), ("扑克牌", "playing cards"), ("麻将", "mahjong sets"),
    ("象棋", "chess sets"), ("桌游", "board games"), ("骰子", "dice"), ("洋娃娃", "dolls"),
    ("泰迪熊", "teddy bears"), ("木偶", "puppets"), ("风筝", "kites"), ("陀螺", "spinning tops"),
    ("溜溜球", "yo-yos"), ("弹珠", "marbles"), ("橡皮泥", "modelling clay"), ("遥控车", "remote-control cars"),
    ("蹦床", "trampolines"), ("婴儿床", "cots"), ("奶瓶", "baby bottles"), ("奶嘴", "dummies"),
    ("辅食", "baby food"), ("孕妇装", "maternity dresses"), ("连衣裙", "dresses"),
    ("婚纱", "wedding dresses"), ("旗袍", "cheongsams"), ("短裤", "shorts"), ("内裤", "underpants"),
    ("胸罩", "bras"), ("丝袜", "tights"), ("围裙", "aprons"), ("工作服", "overalls"), ("凉鞋", "sandals"),
    ("高跟鞋", "high heels"), ("芭蕾舞鞋", "ballet shoes"), ("鞋带", "shoelaces"), ("纽扣", "buttons"),
    ("拉链", "zips"), ("缝纫机", "sewing machines"), ("毛线", "knitting wool"), ("布料", "fabric"),
    ("丝绸", "silk"), ("袖扣", "cufflinks"), ("胸针", "brooches"), ("手镯", "bangles"), ("珍珠", "pearls"),
    ("钻石", "diamonds"), ("玉器", "jade"), ("红宝石", "rubies"), ("金条", "gold bars"), ("邮票", "stamps"),
    ("古董", "antiques"), ("油画", "oil paintings"), ("雕塑", "sculptures"), ("海报", "posters"),
    ("相框", "picture frames"), ("颜料", "watercolours"), ("画架", "easels"), ("橡皮", "erasers"),
    ("尺子", "rulers"), ("剪刀", "scissors"), ("订书机", "staplers"), ("信封", "envelopes"),
    ("墨盒", "ink cartridges"), ("计算器", "calculators"), ("白板", "whiteboards"), ("保险箱", "safes"),
    ("地球仪", "globes"), ("教科书", "textbooks"), ("漫画", "comics"), ("食谱", "cookery books"),
    ("百科全书", "encyclopedias"), ("诗集", "poetry books"), ("杂志", "magazines"), ("报纸", "newspapers"),
    ("童话书", "fairy tale books"), ("乐谱", "sheet music"), ("古筝", "zithers"), ("笛子", "flutes"),
    ("小号", "trumpets"), ("萨克斯", "saxophones"), ("口琴", "harmonicas"), ("手风琴", "accordions"),
    ("竖琴", "harps"), ("大提琴", "cellos"), ("尤克里里", "ukuleles"), ("琴弦", "guitar strings"),
    ("对讲机", "walkie-talkies"), ("路由器", "routers"), ("硬盘", "hard drives"), ("显卡", "graphics cards"),
    ("监控摄像头", "security cameras"), ("扫描仪", "scanners"), ("电子书阅读器", "e-readers"), ("三脚架", "tripods"),
    ("机器人", "robots"), ("金属探测器", "metal detectors"), ("洗碗机", "dishwashers"),
    ("电风扇", "electric fans"), ("暖气片", "radiators"), ("壁炉", "fireplaces"), ("熨斗", "irons"),
    ("吹风机", "hairdryers"), ("剃须刀", "razors"), ("卷发棒", "curling irons"), ("搅拌机", "blenders"),
    ("面包机", "bread makers"), ("榨汁机", "juicers"), ("燃气灶", "gas stoves"), ("菜刀", "kitchen knives"),
    ("砧板", "chopping boards"), ("筷子", "chopsticks"), ("勺子", "spoons"), ("叉子", "forks"),
    ("盘子", "plates"), ("碗", "bowls"), ("酒杯", "wine glasses"), ("开瓶器", "corkscrews"),
    ("垃圾桶", "dustbins"), ("扫帚", "brooms"), ("拖把", "mops"), ("水桶", "buckets"), ("海绵", "sponges"),
    ("洗洁精", "washing-up liquid"), ("洗衣粉", "washing powder"), ("衣架", "coat hangers"),
    ("书架", "bookshelves"), ("餐桌", "dining tables"), ("茶几", "coffee tables"),
    ("鞋柜", "shoe cabinets"), ("摇椅", "rocking chairs"), ("杀虫剂", "insecticide"),
    ("老鼠夹", "mousetraps"), ("花盆", "flower pots"), ("洒水壶", "watering cans"), ("温室", "greenhouses"),
    ("篱笆", "garden fences"), ("树苗", "saplings"), ("仙人掌", "cacti"), ("郁金香", "tulips"),
    ("玫瑰", "roses"), ("小狗", "puppies"), ("小猫", "kittens"), ("仓鼠", "hamsters"), ("兔子", "rabbits"),
    ("鹦鹉", "parrots"), ("金鱼", "goldfish"), ("乌龟", "tortoises"), ("马", "horses"), ("奶牛", "cows"),
    ("绵羊", "sheep"), ("蜜蜂", "bees"), ("猫砂", "cat litter"), ("狗绳", "dog leads"), ("鸟笼", "birdcages"),
    ("草莓", "strawberries"), ("樱桃", "cherries"), ("芒果", "mangoes"), ("菠萝", "pineapples"),
    ("柠檬", "lemons"), ("桃子", "peaches"), ("榴莲", "durians"), ("荔枝", "lychees"), ("胡萝卜", "carrots"),
    ("洋葱", "onions"), ("大蒜", "garlic"), ("黄瓜", "cucumbers"), ("菠菜", "spinach"), ("蘑菇", "mushrooms"),
    ("南瓜", "pumpkins"), ("豆腐", "tofu"), ("猪肉", "pork"), ("羊肉", "lamb"), ("鸡翅", "chicken wings"),
    ("火腿", "ham"), ("香肠", "sausages"), ("三文鱼", "salmon"), ("虾", "prawns"), ("螃蟹", "crabs"),
    ("鱼子酱", "caviar"), ("奶酪", "cheese"), ("黄油", "butter"), ("酸奶", "yoghurt"), ("冰淇淋", "ice cream"),
    ("蜂蜜", "honey"), ("果酱", "jam"), ("白糖", "sugar"), ("盐", "salt"), ("胡椒", "pepper"),
    ("酱油", "soy sauce"), ("醋", "vinegar"), ("番茄酱", "ketchup"), ("意大利面", "spaghetti"),
    ("方便面", "instant noodles"), ("饺子", "dumplings"), ("粽子", "rice dumplings"), ("月饼", "mooncakes"),
    ("汉堡", "hamburgers"), ("薯片", "crisps"), ("爆米花", "popcorn"), ("口香糖", "chewing gum"),
    ("棒棒糖", "lollipops"), ("核桃", "walnuts"), ("花生", "peanuts"), ("燕麦片", "oatmeal"), ("可乐", "cola"),
    ("香槟", "champagne"), ("威士忌", "whisky"), ("粉底液", "foundation"), ("眼影", "eyeshadow"),
    ("睫毛膏", "mascara"), ("指甲油", "nail polish"), ("防晒霜", "sun cream"), ("护手霜", "hand cream"),
    ("染发剂", "hair dye"), ("沐浴露", "shower gel"), ("除臭剂", "deodorant"), ("梳子", "combs"),
    ("指甲刀", "nail clippers"), ("牙线", "dental floss"), ("棉签", "cotton buds"), ("创可贴", "plasters"),
    ("绷带", "bandages"), ("止痛药", "painkillers"), ("咳嗽糖浆", "cough syrup"), ("眼药水", "eye drops"),
    ("隐形眼镜", "contact lenses"), ("助听器", "hearing aids"), ("拐杖", "crutches"), ("假牙", "dentures"),
    ("注射器", "syringes"), ("听诊器", "stethoscopes"), ("血糖仪", "glucose meters"), ("人参", "ginseng"),
    ("蛋白粉", "protein powder"), ("鱼油", "fish oil"), ("验孕棒", "pregnancy tests"), ("避孕套", "condoms"),
    ("演唱会门票", "concert tickets"), ("游轮旅行", "cruises"), ("网课", "online courses"),
    ("驾驶课", "driving lessons"), ("健身卡", "gym memberships"), ("游戏点卡", "game credits"),
    ("话费充值", "phone credit"), ("手机卡", "sim cards"), ("杀毒软件", "antivirus software"),
    ("域名", "domain names"), ("公寓", "flats"), ("停车位", "parking spaces"), ("墓地", "burial plots"),
    ("家政服务", "cleaning services"), ("搬家服务", "removal services"), ("按摩", "massages"),
    ("租车服务", "car rental"), ("棺材", "coffins"), ("盔甲", "suits of armour"), ("化石", "fossils"),
    ("陨石", "meteorites"), ("汽油", "petrol"), ("煤炭", "coal"), ("稻草人", "scarecrows"),
    ("降落伞", "parachutes"), ("收银机", "cash registers"),
)

# How customers call what they wait for.
THINGS_ZH = ("快递", "包裹", "货", "东西", "我买的东西")
THINGS_EN = ("parcel", "package", "order", "delivery")
