#include "lab/texts.h"

#include <stddef.h>

static const char *const chinese[] = {
    "请帮我写一段新年祝福，送给和我一起工作了三年的同事，语气要温暖，不要太长。",
    "周末想带孩子去郊外走走，有没有适合野餐的公园？需要准备哪些东西？",
    "为什么天空在傍晚会变成红色？请用小学生能听懂的话解释一下。",
    "我想学做红烧肉，需要哪些材料，火候怎么掌握？第一次做容易失败在哪里？",
    "请把下面这句话翻译成英文：虽然路很远，但是我们还是在天黑之前到了山顶。",
    "最近晚上总是睡不好，除了少喝咖啡，还有什么简单的办法可以试一试？",
    "帮我给这篇关于城市绿化的文章想三个标题，要简短有力，不要用问句。",
    "两个人合开一家小书店，怎样分工比较合理？怎样避免因为钱的事情争吵？",
    "请介绍一下围棋的基本规则，以及初学者最常犯的错误。",
    "这件外套有没有大一号的？颜色和图片上的一样吗？洗了会不会缩水？",
    NULL,
};

static const char *const english[] = {
    "Write a short thank-you note to a neighbour who watered the plants while we were away.",
    "What is the difference between weather and climate, in words that a child understands?",
    "I have two apples, buy seven more and give away a third of them. How many are left?",
    "How do I return a pair of shoes that I bought last week? They are too small for me.",
    "Plan a quiet weekend by the sea for two people who like walking and old bookshops.",
    "Summarise in one sentence why bees matter to farmers, and what harms them most.",
    "Which questions should I ask before I rent a flat that I have only seen in pictures?",
    "Describe a thunderstorm over a small harbour as the beginning of a detective story.",
    "My discount code does not work at the checkout. It says that it has expired. Please help.",
    "Explain how a bicycle stays upright, first simply and then for an engineer.",
    NULL,
};

static const char *const code[] = {
    "def mean(values):\n    \"\"\"The arithmetic mean; 0 of an empty list.\"\"\"\n    if not "
    "values:\n"
    "        return 0\n    return sum(values) / len(values)\n",
    "int count_bits(unsigned x)\n{\n    int n = 0;\n    for (; x; x &= x - 1) n++;\n    return n;\n"
    "}\n",
    "SELECT customer, SUM(total) FROM orders WHERE day >= '2024-01-01' GROUP BY customer "
    "HAVING SUM(total) > 100 ORDER BY 2 DESC;\n",
    "for i in range(1, 101):\n    if i % 15 == 0:\n        print('FizzBuzz')\n    elif i % 3 == "
    "0:\n"
    "        print('Fizz')\n",
    "struct node { int key; struct node *next; };\nstruct node *push(struct node *head, struct "
    "node "
    "*n)\n{\n    n->next = head;\n    return n;\n}\n",
    "function debounce(fn, ms) {\n  let timer;\n  return (...args) => { clearTimeout(timer); timer "
    "= "
    "setTimeout(() => fn(...args), ms); };\n}\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n    def push(self, item):\n"
    "        self.items.append(item)\n    def pop(self):\n        return self.items.pop()\n",
    NULL,
};

static const char *const logistics[] = {
    "我的快递到哪里了？单号已经查不到新的信息了。",
    "订单什么时候发货？我三天前就付款了。",
    "物流信息两天没有更新，包裹是不是丢了？",
    "快递显示已经签收，但是我没有收到。",
    "可以把收货地址改到公司吗？还没有发货。",
    "包裹什么时候能送到？我周五要出门。",
    "请帮我催一下快递，孩子等着用。",
    "为什么我的订单分成两个包裹寄出？另一个在哪里？",
    "快递员没有打电话就把包裹放在门口了。",
    "查询快递单号，看看现在到了哪个城市。",
    "活动期间下的订单，预计几天可以送到？",
    "包裹外面破了，里面的东西也坏了，怎么处理？",
    "能不能换一家快递公司发货？",
    "我想预约明天下午送货上门。",
    NULL,
};

const char *const *const ek_lab_texts[EK_LAB_N_KINDS] = {chinese, english, code, logistics};
