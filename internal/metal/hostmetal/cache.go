package hostmetal

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxCacheBytes is what housekeeping leaves in the cache.
const maxCacheBytes = 256 << 20

// UnsafeCacheError says that others could put a library into the cache, which would then be loaded.
type UnsafeCacheError struct {
	Path string
	Why  string
	Fix  string // a command
}

func (e *UnsafeCacheError) Error() string {
	return fmt.Sprintf("host Metal device: cache %s %s: refusing to load libraries from it", e.Path, e.Why)
}

// Hint names the command that makes the cache safe.
func (e *UnsafeCacheError) Hint() string { return e.Fix }

const anotherCache = "LLMRUN_CACHE=DIR names a folder of your own for compiled libraries"

// cacheDir returns the folder of compiled libraries, $LLMRUN_CACHE or llmrun/msl in the user's
// cache, after making it if need be.
func cacheDir() (string, error) {
	dir := os.Getenv("LLMRUN_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", &setupError{fmt.Errorf("host Metal device: no cache folder: %w", err), anotherCache}
		}
		dir = filepath.Join(user, "llmrun", "msl")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("host Metal device: cache: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", &setupError{fmt.Errorf("host Metal device: cache: %w", err), anotherCache}
	}
	st, err := os.Stat(dir)
	if err != nil {
		return "", fmt.Errorf("host Metal device: cache: %w", err)
	}
	return dir, checkOwner(dir, st)
}

// checkOwner refuses what another user owns or could write to.
func checkOwner(path string, st fs.FileInfo) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("host Metal device: cache %s: owner unknown", path)
	}
	if int(sys.Uid) != os.Geteuid() {
		return &UnsafeCacheError{path, fmt.Sprintf("belongs to user %d, not to %d", sys.Uid, os.Geteuid()),
			"set LLMRUN_CACHE to a folder of your own"}
	}
	if st.Mode().Perm()&0o022 != 0 {
		return &UnsafeCacheError{path, fmt.Sprintf("is writable by others (mode %04o)", st.Mode().Perm()), "chmod go-w " + path}
	}
	return nil
}

// cached returns the library name.so in the cache, after build has made it if it is missing or
// damaged. build gets an empty folder and leaves the library in it, under the name it returns.
// Processes that want the same library at once wait for the first; failures are not kept.
func cached(name string, build func(dir string) (string, error)) (string, error) {
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name+".so")
	if ok, err := intact(path); ok || err != nil {
		return path, err
	}
	unlock, err := lockFile(filepath.Join(dir, name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if ok, err := intact(path); ok || err != nil {
		return path, err
	}
	tmp, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", fmt.Errorf("host Metal device: cache: %w", err)
	}
	defer os.RemoveAll(tmp)
	out, err := build(tmp)
	if err != nil {
		return "", err
	}
	if err := seal(filepath.Join(tmp, out), path); err != nil {
		return "", fmt.Errorf("host Metal device: cache: %w", err)
	}
	tidy(dir, maxCacheBytes, path)
	return path, nil
}

// seal appends the SHA-256 of a library to it, which the loader ignores, and moves it into place.
func seal(from, to string) error {
	lib, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(lib)
	f, err := os.OpenFile(from, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(sum[:])
	err = errors.Join(err, f.Chmod(0o700), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(from, to)
}

// intact tells whether a sealed library is there, and whole. It notes the use for tidy.
func intact(path string) (bool, error) {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("host Metal device: cache: %w", err)
	}
	if err := checkOwner(path, st); err != nil {
		return false, err
	}
	lib, err := os.ReadFile(path)
	if err != nil || !st.Mode().IsRegular() {
		return false, err
	}
	body := lib[:max(0, len(lib)-sha256.Size)]
	sum := sha256.Sum256(body)
	if !bytes.Equal(lib[len(body):], sum[:]) {
		return false, nil
	}
	now := time.Now()
	os.Chtimes(path, now, now) // a read-only cache still serves
	return true, nil
}

// lockFile takes an advisory lock that also holds between processes. The file goes with the lock;
// who waits for a file that has gone finds the library built, or builds it a second time.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("host Metal device: cache: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("host Metal device: lock %s: %w", path, err)
	}
	return func() {
		os.Remove(path)
		f.Close()
	}, nil
}

// tidy removes the libraries that were used longest ago until limit bytes are left, and what
// interrupted builds left behind. keep stays.
func tidy(dir string, limit int64, keep string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	var libs []fs.FileInfo
	var total int64
	for _, e := range entries {
		st, err := e.Info()
		if err != nil {
			continue
		}
		old := time.Since(st.ModTime()) > time.Hour
		switch {
		case e.IsDir() && strings.HasPrefix(e.Name(), "build-") && old:
			os.RemoveAll(filepath.Join(dir, e.Name()))
		case strings.HasSuffix(e.Name(), ".lock") && old:
			os.Remove(filepath.Join(dir, e.Name()))
		case strings.HasSuffix(e.Name(), ".so"):
			libs = append(libs, st)
			total += st.Size()
		}
	}
	slices.SortFunc(libs, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, st := range libs {
		path := filepath.Join(dir, st.Name())
		if total > limit && path != keep && os.Remove(path) == nil {
			total -= st.Size()
		}
	}
}
