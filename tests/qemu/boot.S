# Boot sector without an operating system, for tests of disk images. It prints the first byte of the second sector on the first
# serial port as `image X`, replaces the byte by `B`, and prints what it then reads.
  .code16
  .text
  .globl _start
_start:
  xor %ax, %ax
  mov %ax, %ds
  mov %ax, %es
  mov %ax, %ss
  mov $0x7c00, %sp
  mov %dl, drive
  mov $0x42, %ah
  call transfer
  call report
  movb $'B', 0x8000
  mov $0x43, %ah
  call transfer
  movb $'?', 0x8000
  mov $0x42, %ah
  call transfer
  call report
stop:
  hlt
  jmp stop

# Reads (AH 0x42) or writes (AH 0x43) the second sector.
transfer:
  xor %al, %al
  mov drive, %dl
  mov $packet, %si
  int $0x13
  jc failed
  ret
failed:
  mov $'!', %al
  call put
  jmp stop

report:
  mov $text, %si
next:
  lodsb
  test %al, %al
  jz last
  call put
  jmp next
last:
  mov 0x8000, %al
  call put
  mov $'\r', %al
  call put
  mov $'\n', %al
put:
  mov $0x3f8, %dx
  outb %al, %dx
  ret

text: .asciz "image "
drive: .byte 0
packet: .byte 16, 0, 1, 0
  .word 0x8000, 0
  .quad 1
  .org 510
  .word 0xaa55
