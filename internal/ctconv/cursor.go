package ctconv

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf8"

	"llmrun/internal/num"
)

// cursor walks a model.bin. Its first failure sticks: every later read gives zero and moves nothing.
type cursor struct {
	file     string
	variable string // whose record or alias is being read
	bin      []byte
	off      int
	err      error
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = &Error{File: c.file, Variable: c.variable, Offset: int64(c.off), Defect: fmt.Sprintf(format, args...)}
	}
}

func (c *cursor) take(n uint64, what string) []byte {
	if c.err != nil {
		return nil
	}
	if left := uint64(len(c.bin) - c.off); n > left {
		c.fail("short file: want %d bytes (%s), %d left", n, what, left)
		return nil
	}
	b := c.bin[c.off : c.off+int(n) : c.off+int(n)]
	c.off += int(n)
	return b
}

func (c *cursor) u8(what string) uint8 {
	if b := c.take(1, what); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u32(what string) uint32 {
	if b := c.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// str reads a name. Names go into messages, so they must be printable.
func (c *cursor) str(what string) string {
	start := c.off
	var n uint64
	if b := c.take(2, what); b != nil {
		n = uint64(binary.LittleEndian.Uint16(b))
	}
	b := c.take(n, what)
	defect := ""
	switch {
	case c.err != nil:
		return ""
	case n < 2:
		defect = fmt.Sprintf("want a string (%s) and its closing NUL, its length says %d", what, n)
	case b[n-1] != 0:
		defect = fmt.Sprintf("want a string (%s) that ends with NUL, %d bytes end with %#02x", what, n, b[n-1])
	case !printable(b[:n-1]):
		defect = fmt.Sprintf("want a printable string (%s), found %.40q", what, b[:n-1])
	default:
		return string(b[:n-1])
	}
	c.off = start
	c.fail("%s", defect)
	return ""
}

func printable(b []byte) bool {
	for _, r := range string(b) {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return false
		}
	}
	return true
}

// count reads how many entries follow, which the rest of the file must have room for.
func (c *cursor) count(what string, least int) int {
	n := c.u32("the number of " + what)
	room := (len(c.bin) - c.off) / least
	if c.err != nil || n <= maxCount && int(n) <= room {
		return int(n)
	}
	c.off -= 4
	if n > maxCount {
		c.fail("want at most %d %s, file says %d", maxCount, what, n)
	} else {
		c.fail("short file: want %d %s, there is room for at most %d", n, what, room)
	}
	return 0
}

func (c *cursor) shape() []int {
	rank := c.u8("the number of dimensions")
	if c.err == nil && rank > maxRank {
		c.off--
		c.fail("want at most %d dimensions, file has %d", maxRank, rank)
	}
	b := c.take(4*uint64(rank), "dimensions")
	if b == nil {
		return nil
	}
	shape := make([]int, rank)
	for i := range shape {
		shape[i] = int(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return shape
}

// elements is the product of the dimensions, which no record can hold beyond 32 bits: its size field is that wide.
func (c *cursor) elements(shape []int) uint64 {
	n := uint64(1)
	for _, d := range shape {
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > 1<<32-1 {
			c.fail("shape %v overflows: a variable holds at most %d elements", shape, uint64(1<<32-1))
			return 0
		}
		n = lo
	}
	return n
}

func (c *cursor) dtype(version int) num.DType {
	if version >= 4 {
		id := c.u8("the type")
		if c.err == nil && id >= uint8(num.NumDTypes) {
			c.off--
			c.fail("want a type id from 0 to %d, file has %d", num.NumDTypes-1, id)
			return 0
		}
		return num.DType(id)
	}
	// Before version 4 only the size is stored, which these three types share with no other.
	size := c.u8("the item size")
	for _, d := range []num.DType{num.Float32, num.Int16, num.Int8} {
		if int(size) == d.Size() {
			return d
		}
	}
	if c.err == nil {
		c.off--
		c.fail("want an item size of 1, 2 or 4 bytes, file has %d", size)
	}
	return 0
}
