package mapped

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// file is a mapped file of some pieces, and half of one.
func file(t *testing.T, pieces int) *File {
	t.Helper()
	data := make([]byte, pieces*piece+piece/2)
	for i := range data {
		data[i] = byte(i % 251)
	}
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if !bytes.Equal(f.Data, data) {
		t.Fatal("other bytes")
	}
	return f
}

// readAhead also gives what was shown, as a part of all.
func readAhead(ctx context.Context, f *File) (shown []float64, err error) {
	err = f.ReadAhead(ctx, func(done, total int64) {
		shown = append(shown, float64(done)/float64(total))
	})
	return shown, err
}

func TestReadAhead(t *testing.T) {
	f := file(t, 4)
	cold := map[int]bool{}
	f.resident = func(offset int) bool { return !cold[offset/piece] }
	for _, c := range []struct {
		cold  []int
		shown []float64
	}{
		{nil, nil},
		{[]int{0, 1, 2, 3, 4}, []float64{0, 1 / 4.5, 2 / 4.5, 3 / 4.5, 4 / 4.5, 1}},
		{[]int{1, 4}, []float64{0, 1 / 1.5, 1}},
		{[]int{2}, []float64{0, 1}},
	} {
		clear(cold)
		for _, p := range c.cold {
			cold[p] = true
		}
		if got, err := readAhead(t.Context(), f); err != nil || !slices.Equal(got, c.shown) {
			t.Errorf("pieces %v: %v, %v; want %v", c.cold, got, err, c.shown)
		}
	}
	if err := f.ReadAhead(t.Context(), nil); err != nil {
		t.Errorf("unseen: %v", err)
	}
}

// TestInterrupt: the piece that is being read is the last one.
func TestInterrupt(t *testing.T) {
	f := file(t, 4)
	f.resident = func(int) bool { return false }
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	err := f.ReadAhead(ctx, func(int64, int64) {
		if calls++; calls == 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || calls != 2 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// TestResident asks the system: what has been read is in memory. Whether it drops what it is asked to is its own affair.
func TestResident(t *testing.T) {
	f := file(t, 2)
	if err := f.file.Sync(); err != nil { // only then it can be dropped
		t.Fatal(err)
	}
	f.drop(span{0, len(f.Data)})
	t.Logf("%d pieces dropped", len(f.cold()))
	if err := f.ReadAhead(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if cold := f.cold(); len(cold) > 0 {
		t.Errorf("not in memory, though read: %v", cold)
	}
}

func TestShortened(t *testing.T) {
	f := file(t, 2)
	f.resident = func(int) bool { return false }
	if err := os.Truncate(f.file.Name(), piece+1); err != nil {
		t.Fatal(err)
	}
	if _, err := readAhead(t.Context(), f); err == nil || !strings.Contains(err.Error(), "it has become shorter: want 10485760 bytes") {
		t.Errorf("%v", err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := Open(dir); err == nil || err.Error() != dir+": want a regular file, this is none" {
		t.Errorf("a directory: %v", err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := Open(empty)
	if err != nil || len(f.Data) != 0 {
		t.Fatalf("an empty file: %v", err)
	}
	if err := f.ReadAhead(t.Context(), nil); err != nil {
		t.Errorf("an empty file: %v", err)
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Forget gives back whole pages of a range, whatever its ends, and they can still be read.
func TestForget(t *testing.T) {
	f := file(t, 0)
	for _, r := range [][2]int{{0, len(f.Data)}, {1, len(f.Data) - 1}, {5, 6}, {7, 7}} {
		f.Forget(r[0], r[1])
		for i, b := range f.Data {
			if b != byte(i%251) {
				t.Fatalf("%v: byte %d is %d", r, i, b)
			}
		}
	}
}
