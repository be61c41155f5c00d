"""Word lists."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ONSETS = (
    *"bcdfghjklmnpqrstvwxyz", "", "br", "ch", "cl", "dr", "fl", "fr", "gl", "gr", "kn", "pl", "pr",
    "qu", "sh", "sk", "sl", "sp", "st", "str", "th", "tr", "wh",
)  # fmt: skip
VOWELS = (*"aeiouaeiouaeiou", "ai", "au", "ea", "ee", "ei", "ie", "io", "oa", "oo", "ou", "y")
CODAS = (
    *("" for _ in range(12)), *"bdfgklmnprstvxz", "ck", "ff", "ld", "ll", "lt", "mp", "nd", "ng",
    "nk", "nt", "rd", "rk", "rm", "rn", "rt", "sh", "sk", "ss", "st", "th",
)  # fmt: skip

ACCENTS = {
    "a": "áàâäãåą", "c": "çčć", "d": "ď", "e": "éèêëęě", "g": "ğ", "i": "íîï", "l": "ł", "n": "ñńň", "o": "óòôöõøő",
    "r": "ř", "s": "šśş", "t": "ť", "u": "úùûüůű", "y": "ý", "z": "žźż",
}  # fmt: skip
"""Letters of other alphabets by the English letter that they resemble."""

NAMES = (
    "Ada Ahmed Aiko Alan Alice Amara Amir Ana Andrei Anna Anton Aisha Ben Bianca Bob Boris Bruno "
    "Carla Carlos Carol Chen Clara Dana Daniel Dave David Diego Dora Elena Eli Ella Emil Emma Erik "
    "Eva Fatima Felix Finn Frank Freya George Gina Grace Greta Hana Hans Harry Hugo Ida Igor Ines "
    "Ingrid Isaac Ivan Ivy Jack James Jane Jin Joe Johan John Julia Kai Karim Kate Kenji Kim Lara "
    "Lea Leo Liam Lily Lina Linus Lisa Lucas Lucy Luis Lukas Maria Mark Marta Mary Max Maya Mei Mia "
    "Mila Mohamed Nadia Nina Noah Nora Olga Oliver Omar Oscar Otto Paul Pedro Peter Petra Priya "
    "Raj Rita Rosa Ruth Sam Sara Sofia Stefan Tariq Theo Tim Tom Uma Vera Victor Wei Yara Yuki Zoe"
).split()

CITIES = (
    "Amsterdam Athens Auckland Baghdad Bangkok Barcelona Beijing Berlin Bern Bogota Boston Brussels "
    "Budapest Cairo Chicago Copenhagen Dakar Delhi Denver Dublin Geneva Hamburg Hanoi Havana Helsinki "
    "Istanbul Jakarta Kyoto Lagos Lima Lisbon London Lyon Madrid Manila Miami Milan Montreal Moscow "
    "Mumbai Munich Nairobi Naples Osaka Oslo Paris Porto Prague Rome Riga Santiago Seattle Seoul "
    "Shanghai Singapore Sofia Stockholm Sydney Tokyo Toronto Tunis Turin Vienna Warsaw Zurich"
).split()

COUNTRIES = (
    "Argentina Austria Belgium Brazil Canada Chile China Denmark Egypt Estonia Finland France Germany "
    "Ghana Greece Iceland India Indonesia Ireland Italy Japan Kenya Mexico Morocco Nigeria Norway Peru "
    "Poland Portugal Spain Sweden Switzerland Thailand Turkey Uganda Ukraine Vietnam"
).split()

LANGUAGES = (
    "Arabic Chinese Czech Danish Dutch English Finnish French German Greek Hindi Hungarian Italian "
    "Japanese Korean Norwegian Polish Portuguese Romanian Russian Spanish Swedish Thai Turkish"
).split()

CURRENCIES = (
    "AUD BRL CAD CHF CNY CZK DKK EUR GBP HUF INR JPY KRW MXN NOK NZD PLN SEK SGD THB TRY USD ZAR"
).split()

CITY_PREFIXES = "New Old San Port East West North South Saint Great Upper Lower Fort Mount".split()
DOMAINS = "com org net io info biz dev app edu gov eu co site online".split()
FILE_TYPES = "txt py md csv html json log xml toml js pdf png yaml sql css doc zip ini bin".split()

HOBBIES = (
    "chess football painting reading swimming cooking running singing dancing tennis gardening sewing "
    "sailing hiking fishing knitting archery fencing golf yoga rowing juggling surfing pottery boxing skating judo "
    "baking cycling skiing bowling hockey"
).split()

JOBS = (
    "actor architect artist baker barber builder butcher carpenter chef clerk cook dancer dentist "
    "designer doctor driver editor engineer farmer firefighter fisher gardener guard judge lawyer "
    "librarian mechanic miner musician nurse painter pilot plumber poet sailor scientist singer "
    "smith soldier student surgeon tailor teacher waiter writer"
).split()

COLORS = (
    "red blue green yellow black white brown orange purple pink grey golden silver violet"
).split()

ANIMALS = (
    "bear bee bird camel cat chicken cow crab crow deer dog dolphin donkey duck eagle elephant fish "
    "fox frog goat goose hamster horse lion lizard monkey mouse owl panda parrot penguin pig pigeon "
    "rabbit rat seal shark sheep snake spider squirrel swan tiger turtle whale wolf zebra"
).split()

THINGS = (
    "apple bag ball basket bell bicycle blanket boat book bottle bowl box bread brush bucket button "
    "cake camera candle cap car card chair clock coat coin comb cup desk dish doll door drum fan "
    "fork glass glove guitar hammer hat jar kettle key knife ladder lamp letter map mask mirror "
    "mug nail needle paper pen pencil phone piano picture pillow plate pot radio ring rope ruler "
    "scarf shirt shoe sock spoon stamp stone table tent ticket towel toy train umbrella vase watch "
    "wheel whistle"
).split()

PLACES = (
    "attic balcony bank barn basement bathroom bedroom bridge cafe castle cave cellar church cinema "
    "corner desert factory farm field forest garage garden hall harbor hospital hotel house island "
    "kitchen lake library market museum office park restaurant river roof school shed shop stable "
    "station street theatre tower town valley village yard zoo"
).split()

NOUNS = (
    "account address album alarm alert answer article backup balance band bill block board bonus "
    "booking branch budget bug bus calendar call camera campaign card cart case category channel chart "
    "chat city client cloud code color comment commit company contact contract course currency "
    "customer database date deal device discount distance doctor document domain door download email "
    "employee event exam expense file film flight folder forecast form game garden grade group guest "
    "heater holiday host hotel image index invoice item job joke key label lamp language lesson level "
    "library license light link list location lock log machine mail map market match meal meeting "
    "member memory menu message meter movie music name network news note number offer order owner "
    "package page parcel park password patient payment permit person phone photo picture plan plant "
    "player playlist poem point policy port post price printer process product profile project quote "
    "rate recipe record region reminder rent repair report request result review reward ride road "
    "robot role room route rule salary sale sample schedule school score screen sensor server service "
    "session shift ship shop signal site size song sound speaker stock store story street student "
    "summary supplier survey switch system table tag task tax team temperature test text theme "
    "ticket time timer title topic tour track train transaction translation trip tutor unit update "
    "user vehicle version video visit voice volume vote warehouse watch weather website window word "
    "worker zone"
).split()

ADJECTIVES = (
    "big small old new young tall short long heavy light fast slow warm cold dry wet clean dirty "
    "quiet loud strong weak rich poor happy sad brave calm clever kind lazy proud shy tired angry "
    "empty full hard soft sweet bitter bright dark deep flat round sharp smooth thick thin wide"
).split()

COMMON = (
    *ADJECTIVES, *THINGS, *ANIMALS, *PLACES, *NOUNS, *COLORS, *JOBS,
    *(
        "go come take give make see know think say tell ask find keep leave put bring hold run walk "
        "stand sit sleep eat drink read write speak listen play work buy sell open close begin end "
        "stop start turn move carry build break cut draw paint sing dance swim climb fall grow send "
        "water fire earth wind rain snow sun moon star sky sea hill tree leaf flower grass seed root "
        "day night morning evening week month year hour minute summer winter spring autumn man woman "
        "child boy girl friend mother father brother sister king queen people family hand head eye "
        "ear foot arm leg heart face hair voice thing way place part side end line idea question "
        "word language number life world country war peace love hope fear dream luck truth power"
    ).split(),
)  # fmt: skip
"""Words that can be a value."""

SMALL = (
    "the the the a a an and and or but not is is are was were be been has have had do does did will "
    "would can could should may must in in on on at at to to of of for for from with by over under near "
    "after before between through into about as if when where while who which that this these those it "
    "he she they we you I his her their our my your its all some many few more most other another each "
    "every both one two three four five six seven eight nine ten first last next only also very too just "
    "now then here there today tomorrow yesterday always never often soon again still already away back "
    "down up out off well so than because"
).split()
"""Words that hold sentences together, which both sides share; as a value they would be
confusing."""

_OWN_MEANING = "and but not if one two three four five six seven eight nine ten".split()
LINKS = [
    *(word for word in dict.fromkeys(SMALL) if word not in _OWN_MEANING),
    *"given using called named set put made kept being like such per via equal".split(),
]
"""Some of these and more, which can stand between a name and its value without a change in
meaning."""
PARTICLES = "up off on out down in away back through over".split()
"""Objects of verbs."""
