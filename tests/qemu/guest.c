// Guest without an operating system, for tests of virtual machines: a multiboot kernel of some kilobytes.
//
// It prints READY and its command line on the first serial port, then a line `beat N` every 100 ms, with the number of pages
// whose pattern was broken. It powers itself off when the power button is pressed. Commands are single characters on the second
// serial port, or `do=X after=N` in the command line, which carries out X after N beats:
//
//   o  power off         r  reset            p  panic
//   h  hang              i  ignore the power button
//   ?  answers `alive` on the second port
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum { FIRST = 0x3f8, SECOND = 0x2f8, PM_STATUS = 0x600, PM_ENABLE = 0x602, PM_CONTROL = 0x604, RESET = 0xcf9, PANIC = 0x505 };
enum { POWER_BUTTON = 1 << 8, SLEEP = 1 << 13, PAGES = 1024, WORDS = 1024 };

__attribute__((section(".boot"), used)) static const u32 multiboot[] = {0x1badb002, 0, -0x1badb002u};

static inline void out8(u16 port, u8 value) { __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }
static inline void out16(u16 port, u16 value) { __asm__ volatile("outw %0, %1" ::"a"(value), "Nd"(port)); }
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

static int ignores_button;
static void stop_forever(void) { for (;;) __asm__ volatile("cli; hlt"); }
static void carry_out(char command) {
  switch (command) {
  case 'o': put(FIRST, "power off\r\n"), out16(PM_CONTROL, SLEEP); break;
  case 'r': put(FIRST, "reset\r\n"), out8(RESET, 6); break;
  case 'p': put(FIRST, "panic\r\n"), out8(PANIC, 1), stop_forever(); break;
  case 'h': put(FIRST, "hang\r\n"), stop_forever(); break;
  case 'i': ignores_button = 1; break;
  case '?': put(SECOND, "alive\n"); break;
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
  put(FIRST, "READY "), put(FIRST, line), put(FIRST, "\r\n");
  for (u32 beat = 1;; beat++) {
    for (u32 until = ticks + 10; (int)(until - ticks) > 0;) {
      __asm__ volatile("hlt");
      if (in16(PM_STATUS) & POWER_BUTTON) {
        out16(PM_STATUS, POWER_BUTTON);
        put(FIRST, "power button\r\n");
        if (!ignores_button) carry_out('o');
      }
      if (in8(SECOND + 5) & 1) carry_out(in8(SECOND));
    }
    for (u32 i = 0; i < 16; i++) write_page(next++ % PAGES, beat);
    put(FIRST, "beat "), put_number(FIRST, beat), put(FIRST, " broken "), put_number(FIRST, broken_pages()), put(FIRST, "\r\n");
    if (planned && after == beat) carry_out(*planned);
  }
}
