package mapped

import "golang.org/x/sys/unix"

// drop asks the system to forget what it has in memory of a piece. Whether it does is its own affair.
func (f *File) drop(p span) {
	_ = unix.Madvise(f.Data[p.offset:][:p.size], unix.MADV_DONTNEED) // what is mapped is not forgotten
	_ = unix.Fadvise(int(f.file.Fd()), int64(p.offset), int64(p.size), unix.FADV_DONTNEED)
}
