// Guest without an operating system, for tests of virtual machines: a multiboot kernel of some kilobytes.
//
// It prints READY and its command line on the first serial port, then a line `beat N` every 100 ms, with the number of pages
// whose pattern was broken. It powers itself off when the power button is pressed. Commands are single characters on the second
// serial port, or `do=X after=N` in the command line, which carries out X after N beats:
//
//   o  power off         r  reset            p  panic
//   h  hang              i  ignore the power button    t  triple fault
//   ?  answers `alive` on the second port
//
// A line on the first port is answered with `heard LINE` there; `!` and one of these characters carries it out as well.
//
// Commands for disks are lines on the second port: a character, the serial number of a disk, and numbers. Each answer is a line:
// `ok`, `other` if a sector has another content than the pattern, `error N` for status N of the device, `absent` without the disk.
//
//   w NAME FIRST COUNT SEED  writes the pattern of the seed to COUNT sectors   v NAME FIRST COUNT SEED  compares them with it
//   f NAME                   flushes                                          d NAME FIRST COUNT       discards sectors
//   s NAME                   answers the number of sectors
//   q NAME COUNT             writes COUNT sectors 100 times a second from now on, one after the other: write N has the number N in each
//                            word, and goes to the first sector of the part N modulo 64 of the disk; continues the numbers on the disk
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum { FIRST = 0x3f8, SECOND = 0x2f8, PM_STATUS = 0x600, PM_ENABLE = 0x602, PM_CONTROL = 0x604, RESET = 0xcf9, PANIC = 0x505 };
enum { POWER_BUTTON = 1 << 8, SLEEP = 1 << 13, PAGES = 1024, WORDS = 1024 };

__attribute__((section(".boot"), used)) static const u32 multiboot[] = {0x1badb002, 0, -0x1badb002u};

static inline void out8(u16 port, u8 value) { __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }
static inline void out16(u16 port, u16 value) { __asm__ volatile("outw %0, %1" ::"a"(value), "Nd"(port)); }
static inline void out32(u16 port, u32 value) { __asm__ volatile("outl %0, %1" ::"a"(value), "Nd"(port)); }
static inline u32 in32(u16 port) { u32 value; __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port)); return value; }
static inline u8 in8(u16 port) { u8 value; __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port)); return value; }
static inline u16 in16(u16 port) { u16 value; __asm__ volatile("inw %1, %0" : "=a"(value) : "Nd"(port)); return value; }

static void serial_start(u16 port) {
  out8(port + 1, 0), out8(port + 3, 0x80), out8(port, 1), out8(port + 1, 0), out8(port + 3, 3), out8(port + 2, 7);
}
static void put(u16 port, const char *text) {
  for (; *text; text++) {
    while (!(in8(port + 5) & 0x20)) {}
    out8(port, *text);
  }
}
static void put_number(u16 port, u32 number) {
  char text[11], *at = text + sizeof text - 1;
  for (*at = 0; number || !*at; number /= 10) *--at = '0' + number % 10;
  put(port, at);
}

// Interrupts: the timer counts, everything else is acknowledged.
volatile u32 ticks;
__asm__(".section .text\n"
        ".globl _start\n_start: mov $stack + 16384, %esp\n push %ebx\n call run\n"
        "on_tick: incl ticks\n"
        "on_other: push %eax\n mov $0x20, %al\n outb %al, $0x20\n outb %al, $0xa0\n pop %eax\n iret\n"
        ".comm stack, 16384, 16\n");
extern char on_tick[], on_other[];

static struct { u16 low, selector; u8 zero, kind; u16 high; } __attribute__((packed)) gates[48];
static const u64 segments[] = {0, 0x00cf9a000000ffff, 0x00cf92000000ffff};
struct table { u16 limit; u32 base; } __attribute__((packed));

static void start_timer(void) {
  for (int i = 32; i < 48; i++) {
    u32 code = (u32)(i == 32 ? on_tick : on_other);
    gates[i].low = code, gates[i].high = code >> 16, gates[i].selector = 8, gates[i].kind = 0x8e;
  }
  struct table descriptors = {sizeof segments - 1, (u32)segments}, interrupts = {sizeof gates - 1, (u32)gates};
  __asm__ volatile("lgdt %0\n ljmp $8, $1f\n 1: mov $16, %%eax\n mov %%eax, %%ds\n mov %%eax, %%es\n mov %%eax, %%ss\n lidt %1"
                   ::"m"(descriptors), "m"(interrupts) : "eax");
  static const u8 controllers[][2] = {{0x20, 0x11}, {0xa0, 0x11}, {0x21, 32}, {0xa1, 40}, {0x21, 4},
                                      {0xa1, 2},    {0x21, 1},    {0xa1, 1},  {0x21, 0xfe}, {0xa1, 0xff}};
  for (u32 i = 0; i < sizeof controllers / 2; i++) out8(controllers[i][0], controllers[i][1]);
  u32 divisor = 1193182 / 100; // 100 ticks a second
  out8(0x43, 0x34), out8(0x40, divisor), out8(0x40, divisor >> 8);
  __asm__ volatile("sti");
}

static const char *find(const char *text, const char *name) {
  for (; text && *text; text++) {
    const char *a = text, *b = name;
    while (*b && *a == *b) a++, b++;
    if (!*b) return a;
  }
  return 0;
}
static u32 number(const char *text) {
  u32 value = 0;
  while (text && *text >= '0' && *text <= '9') value = value * 10 + (*text++ - '0');
  return value;
}

// Disks: legacy devices of virtio on the first bus of PCI, one request at a time, without interrupts.
enum { DISKS = 16, SECTOR = 128 /* words */, MOST = 64 /* sectors of a request */ };
enum { READ = 0, WRITE = 1, FLUSH = 4, IDENTIFY = 8, DISCARD = 11 };
enum { CAN_DISCARD = 1 << 13, CAN_FLUSH = 1 << 9, NEXT = 1, BY_DEVICE = 2 };
struct descriptor { u64 address; u32 length; u16 flags, next; };
struct used { volatile u16 flags, index; struct { u32 id, length; } ring[]; };
static struct disk {
  u16 port, size, sent, can_discard;
  struct descriptor *descriptors;
  volatile u16 *available;
  struct used *used;
  char serial[21];
} disks[DISKS];
static u32 disk_count;
static u8 queues[DISKS][3 * 4096] __attribute__((aligned(4096)));
static u32 buffer[MOST * SECTOR];

static u32 pci(u32 slot, u32 offset) { out32(0xcf8, 1u << 31 | slot << 11 | offset); return in32(0xcfc); }

// Returns the status of the device: 0 if the request was carried out.
static u8 request(struct disk *disk, u32 type, u64 first, void *data, u32 bytes) {
  static struct { u32 type, priority; u64 first; } header;
  static volatile u8 status;
  header.type = type, header.priority = 0, header.first = first, status = 255;
  u32 flags = type == READ || type == IDENTIFY ? NEXT | BY_DEVICE : NEXT;
  disk->descriptors[0] = (struct descriptor){(u32)&header, sizeof header, NEXT, bytes ? 1 : 2};
  disk->descriptors[1] = (struct descriptor){(u32)data, bytes, flags, 2};
  disk->descriptors[2] = (struct descriptor){(u32)&status, 1, BY_DEVICE, 0};
  disk->available[2 + disk->sent % disk->size] = 0;
  __asm__ volatile("" ::: "memory");
  disk->available[1] = ++disk->sent;
  out16(disk->port + 16, 0);
  while (disk->used->index != disk->sent) __asm__ volatile("pause" ::: "memory");
  return status;
}

static void start_disks(void) {
  disk_count = 0;
  for (u32 slot = 0; slot < 32 && disk_count < DISKS; slot++) {
    if (pci(slot, 0) != 0x10011af4) continue;
    struct disk *disk = &disks[disk_count];
    u8 *queue = queues[disk_count++];
    u32 command = pci(slot, 4);
    out32(0xcfc, command | 5); // ports, and access to memory
    disk->port = pci(slot, 16) & ~3, disk->sent = 0;
    out8(disk->port + 18, 0), out8(disk->port + 18, 3);
    u32 features = in32(disk->port) & (CAN_FLUSH | CAN_DISCARD);
    disk->can_discard = !!(features & CAN_DISCARD);
    out32(disk->port + 4, features), out16(disk->port + 14, 0);
    disk->size = in16(disk->port + 12);
    if (disk->size > 256) { put(FIRST, "queue too large\r\n"), disk_count--; continue; }
    for (u32 i = 0; i < sizeof queues[0]; i++) queue[i] = 0;
    disk->descriptors = (void *)queue;
    disk->available = (void *)(queue + 16 * disk->size);
    disk->used = (void *)(((u32)disk->available + 6 + 2 * disk->size + 4095) & ~4095u);
    out32(disk->port + 8, (u32)queue >> 12), out8(disk->port + 18, 7);
    for (u32 i = 0; i < sizeof disk->serial; i++) disk->serial[i] = 0;
    request(disk, IDENTIFY, 0, disk->serial, 20);
    put(FIRST, "disk "), put(FIRST, disk->serial), put(FIRST, " sectors "), put_number(FIRST, in32(disk->port + 20)), put(FIRST, "\r\n");
  }
}

static u32 pattern(u32 sector, u32 seed, u32 word) { return (sector * 16777619u ^ seed) + word; }

static char line[80];
static const char *next_word(const char *at) {
  while (*at && *at != ' ') at++;
  return *at ? at + 1 : at;
}
static int is_word(const char *text, const char *word) {
  while (*word && *text == *word) text++, word++;
  return !*word && (!*text || *text == ' ');
}
static void answer(const char *text, u32 number) {
  put(SECOND, text);
  if (number) put(SECOND, " "), put_number(SECOND, number);
  put(SECOND, "\n");
}
static struct disk *sequence;
static u32 sequence_rate, sequence_last;
static u32 number(const char *text);
static void use_disk(char command) {
  u32 length = 0;
  for (char c = 0; c != '\n';) {
    while (!(in8(SECOND + 5) & 1)) {}
    c = in8(SECOND);
    if (c != '\n' && length < sizeof line - 1) line[length++] = c;
  }
  line[length] = 0;
  const char *name = next_word(line), *first_word = next_word(name), *count_word = next_word(first_word);
  u32 first = number(first_word), count = number(count_word), seed = number(next_word(count_word));
  struct disk *disk = disks;
  while (disk < disks + disk_count && !is_word(name, disk->serial)) disk++;
  u8 status = 0;
  if (disk == disks + disk_count) { answer("absent", 0); return; }
  if (command == 's') { answer("ok", in32(disk->port + 20)); return; }
  if (command == 'q') {
    sequence = disk, sequence_rate = first, sequence_last = 0;
    for (u32 part = 0; part < 64; part++) {
      status = request(disk, READ, in32(disk->port + 20) / 64 * part, buffer, SECTOR * 4);
      if (buffer[0] > sequence_last) sequence_last = buffer[0];
    }
  }
  if (command == 'f') status = request(disk, FLUSH, 0, 0, 0);
  if (command == 'd') {
    struct { u64 first; u32 count, flags; } range = {first, count, 0};
    status = disk->can_discard ? request(disk, DISCARD, 0, &range, sizeof range) : 9;
  }
  for (u32 at = first, part; (command == 'w' || command == 'v') && at < first + count && !status; at += part) {
    part = first + count - at < MOST ? first + count - at : MOST;
    u32 words = part * SECTOR;
    if (command == 'w')
      for (u32 i = 0; i < words; i++) buffer[i] = pattern(at + i / SECTOR, seed, i % SECTOR);
    status = request(disk, command == 'w' ? WRITE : READ, at, buffer, words * 4);
    for (u32 i = 0; command == 'v' && !status && i < words; i++)
      if (buffer[i] != pattern(at + i / SECTOR, seed, i % SECTOR)) { answer("other", 0); return; }
  }
  if (status) answer("error", status); else answer("ok", 0);
}

static void write_sequence(void) {
  for (u32 i = 0; sequence && i < sequence_rate; i++) {
    u32 number = ++sequence_last, part = in32(sequence->port + 20) / 64;
    for (u32 word = 0; word < SECTOR; word++) buffer[word] = number;
    if (request(sequence, WRITE, number % 64 * part, buffer, SECTOR * 4)) put(FIRST, "write failed\r\n");
  }
}

static int ignores_button;
static void stop_forever(void) { for (;;) __asm__ volatile("cli; hlt"); }
static void carry_out(char command) {
  switch (command) {
  case 'o': put(FIRST, "power off\r\n"), out16(PM_CONTROL, SLEEP); break;
  case 'r': put(FIRST, "reset\r\n"), out8(RESET, 6); break;
  case 'p': put(FIRST, "panic\r\n"), out8(PANIC, 1), stop_forever(); break;
  case 't': {
    struct table none = {0, 0};
    put(FIRST, "triple fault\r\n");
    __asm__ volatile("lidt %0\n int3" ::"m"(none));
  }
  case 'h': put(FIRST, "hang\r\n"), stop_forever(); break;
  case 'i': ignores_button = 1; break;
  case '?': put(SECOND, "alive\n"); break;
  case 'w': case 'v': case 'f': case 'd': case 's': case 'q': use_disk(command); break;
  }
}

// Reads what was typed on the first port.
static void hear(void) {
  static char typed[64];
  static u32 length;
  while (in8(FIRST + 5) & 1) {
    char c = in8(FIRST);
    if (c != '\r' && c != '\n') {
      if (length < sizeof typed - 1) typed[length++] = c;
      continue;
    }
    typed[length] = 0, length = 0;
    put(FIRST, "heard "), put(FIRST, typed), put(FIRST, "\r\n");
    if (typed[0] == '!') carry_out(typed[1]);
  }
}

// Each page has a pattern of its number and of the beat in which it was last written.
static u32 (*const pages)[WORDS] = (void *)0x400000;
static u32 written[PAGES];
static void write_page(u32 page, u32 beat) {
  written[page] = beat;
  for (u32 word = 0; word < WORDS; word += 16) pages[page][word] = page << 16 ^ beat;
}
static u32 broken_pages(void) {
  u32 broken = 0;
  for (u32 page = 0; page < PAGES; page++)
    for (u32 word = 0; word < WORDS; word += 16)
      if (pages[page][word] != (page << 16 ^ written[page])) { broken++; break; }
  return broken;
}

void run(const u32 *info) {
  const char *line = info[0] & 4 ? (const char *)info[4] : "";
  const char *planned = find(line, "do=");
  u32 after = number(find(line, "after=")), next = 0;
  serial_start(FIRST), serial_start(SECOND);
  for (u32 page = 0; page < PAGES; page++) write_page(page, 0);
  start_timer();
  out16(PM_ENABLE, POWER_BUTTON);
  start_disks();
  put(FIRST, "READY "), put(FIRST, line), put(FIRST, "\r\n");
  for (u32 beat = 1;; beat++) {
    for (u32 until = ticks + 10; (int)(until - ticks) > 0;) {
      __asm__ volatile("hlt");
      write_sequence();
      if (in16(PM_STATUS) & POWER_BUTTON) {
        out16(PM_STATUS, POWER_BUTTON);
        put(FIRST, "power button\r\n");
        if (!ignores_button) carry_out('o');
      }
      if (in8(SECOND + 5) & 1) carry_out(in8(SECOND));
      hear();
    }
    for (u32 i = 0; i < 16; i++) write_page(next++ % PAGES, beat);
    put(FIRST, "beat "), put_number(FIRST, beat), put(FIRST, " broken "), put_number(FIRST, broken_pages()), put(FIRST, "\r\n");
    if (planned && after == beat) carry_out(*planned);
  }
}
