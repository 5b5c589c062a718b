# Guest that shows whether an accelerator runs guests: a multiboot kernel without an operating system. It writes five letters to the
# first serial port, each after 200,000 locked additions, and ends QEMU through the device isa-debug-exit.
# Assembled by: cc -m32 -nostdlib -static -no-pie -Wl,-Ttext=0x100000,--oformat=binary,--build-id=none,--no-warn-rwx-segments
    .globl _start
header:
    .long 0x1badb002, 0x10000, -(0x1badb002 + 0x10000)
    .long header, header, end, end, _start # addresses of header, data, end of data, end of memory, and start
_start:
    mov $5, %esi
    mov $end, %ebx
beat:
    mov $200000, %ecx
add:
    lock incl (%ebx)
    loop add
    mov $0x3f8, %dx
    mov $'B', %al
    out %al, %dx
    dec %esi
    jnz beat
    mov $0xf4, %dx
    out %al, %dx
halt:
    hlt
    jmp halt
    .byte 0, 0 # the end is a multiple of four
end:
