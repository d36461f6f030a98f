package mapped

import (
	"testing"

	"golang.org/x/sys/unix"
)

// drop asks the system to forget what it has in memory of the file.
func (f *File) drop(t *testing.T) {
	t.Helper()
	if err := f.file.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Madvise(f.Data, unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d pieces dropped", len(f.cold()))
}
