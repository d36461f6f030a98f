//go:build unix

package ctconv

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps a whole regular file read-only.
func mapFile(file string) (bin []byte, unmap func() error, err error) {
	info, err := os.Stat(file) // before open, which would wait for the writer of a pipe
	if err != nil {
		return nil, nil, fmt.Errorf("open model: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, &Error{File: file, Offset: -1, Defect: "want a regular file, this is none"}
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, fmt.Errorf("open model: %w", err)
	}
	defer f.Close() // the mapping outlives the descriptor
	if info, err = f.Stat(); err != nil {
		return nil, nil, fmt.Errorf("open model: %w", err)
	}
	if info.Size() == 0 { // nothing can be mapped; the parser says what is missing
		return nil, func() error { return nil }, nil
	}
	bin, err = unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map %s (%d bytes): %w", file, info.Size(), err)
	}
	return bin, func() error { return unix.Munmap(bin) }, nil
}

// Forget lets the system take back the memory that holds a tensor's bytes in a mapped file, once they have been copied elsewhere.
// The bytes stay valid: who reads them again waits for the file. It does nothing for a model that was read into memory.
func (m *Model) Forget(t Tensor) {
	if m.close == nil {
		return
	}
	page := os.Getpagesize()
	from := (int(t.Offset) + page - 1) / page * page // whole pages only: the others hold neighbours, too
	to := (int(t.Offset) + len(t.Data)) / page * page
	if from < to {
		_ = unix.Madvise(m.bin[from:to], unix.MADV_DONTNEED) // advice: a refusal changes nothing
	}
}
