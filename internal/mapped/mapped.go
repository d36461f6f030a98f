//go:build unix

// Package mapped maps files into memory, and reads those ahead that the system has not in memory yet.
package mapped

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A File is a whole file, mapped read-only. Data is valid until Close.
type File struct {
	Data []byte

	file     *os.File
	resident func(offset int) bool // whether the page with this byte is in memory; tests have their own
}

// Open maps a regular file. It must not be shortened while it is open: the system would answer with SIGBUS.
func Open(name string) (*File, error) {
	info, err := os.Stat(name) // before open, which would wait for the writer of a pipe
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: want a regular file, this is none", name)
	}
	if err != nil {
		return nil, err
	}
	f := &File{}
	if f.file, err = os.Open(name); err != nil {
		return nil, err
	}
	f.resident = f.inCore
	if info, err = f.file.Stat(); err == nil && info.Size() > 0 { // of nothing there is no mapping
		f.Data, err = unix.Mmap(int(f.file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			err = fmt.Errorf("map %s (%d bytes): %w", name, info.Size(), err)
		}
	}
	if err != nil {
		f.file.Close()
		return nil, err
	}
	return f, nil
}

// Close unmaps the file. A second Close does nothing.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	if f.Data != nil {
		if e := unix.Munmap(f.Data); err == nil {
			err = e
		}
	}
	f.file, f.Data = nil, nil
	return err
}

// Sparse tells the system whether just a few pages here and there are going to be used, so that it reads no others with them.
func (f *File) Sparse(yes bool) {
	advice := unix.MADV_NORMAL
	if yes {
		advice = unix.MADV_RANDOM
	}
	if f.Data != nil {
		_ = unix.Madvise(f.Data, advice) // a refusal changes nothing
	}
}

// Forget lets the system take back the memory that holds the whole pages of Data[from:to]. They stay valid: who reads them again waits
// for the file.
func (f *File) Forget(from, to int) {
	page := os.Getpagesize()
	from, to = (from+page-1)/page*page, to/page*page
	if from < to {
		_ = unix.Madvise(f.Data[from:to], unix.MADV_DONTNEED) // as above
	}
}
