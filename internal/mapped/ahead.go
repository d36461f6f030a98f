//go:build unix

package mapped

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"unsafe"
)

// piece is how much of a file is looked at by one of its pages, and read at once: enough for a disk to be at its fastest, and for an
// interrupt to come soon.
const piece = 4 << 20

// ReadAhead reads what the system does not have in memory of the file, in order and in large pieces, which is faster than to wait
// for the pages one by one, where they are used. show, unless nil, is called before each piece and at the end with the bytes that have been
// read, and that are to be; never if there are none. It ends early when ctx does.
func (f *File) ReadAhead(ctx context.Context, show func(done, total int64)) error {
	cold := f.cold()
	if len(cold) == 0 {
		return nil
	}
	done, total := int64(0), int64(0)
	for _, p := range cold {
		total += int64(p.size)
		// Single pages that have been used already would keep the system from reading the piece into large ones, from which it comes to the processor up to
		// a tenth faster.
		f.drop(p)
	}
	buffer := make([]byte, piece)
	for _, p := range cold {
		if err := ctx.Err(); err != nil {
			return err
		}
		if show != nil {
			show(done, total)
		}
		// Through a buffer, so that the process holds no page that it has not used.
		if _, err := f.file.ReadAt(buffer[:p.size], int64(p.offset)); err == io.EOF {
			return fmt.Errorf("read %s: it has become shorter: want %d bytes", f.file.Name(), len(f.Data))
		} else if err != nil {
			return err
		}
		done += int64(p.size)
	}
	if show != nil {
		show(done, total)
	}
	return nil
}

type span struct{ offset, size int }

// cold are the pieces that are not in memory, by the page in their middle.
func (f *File) cold() (pieces []span) {
	for offset := 0; offset < len(f.Data); offset += piece {
		p := span{offset, min(piece, len(f.Data)-offset)}
		if !f.resident(p.offset + p.size/2) {
			pieces = append(pieces, p)
		}
	}
	return pieces
}

// inCore asks the system. If it does not tell, the page counts as resident.
func (f *File) inCore(offset int) bool {
	offset -= offset % os.Getpagesize()
	state := byte(1)
	page := unsafe.Pointer(&f.Data[offset])
	_, _, errno := syscall.Syscall(syscall.SYS_MINCORE, uintptr(page), 1, uintptr(unsafe.Pointer(&state)))
	return errno != 0 || state&1 != 0
}
