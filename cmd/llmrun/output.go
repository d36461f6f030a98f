package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// checkOutput fails before all the work rather than after it, where a file could not be written.
func checkOutput(flag, file string) error {
	if file == "" {
		return nil
	}
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return fmt.Errorf("%s: want a file, %s is a directory", flag, file)
	}
	if info, err := os.Stat(filepath.Dir(file)); err != nil || !info.IsDir() {
		return fmt.Errorf("%s %s: there is no directory %s", flag, file, filepath.Dir(file))
	}
	return nil
}

// answer gives the writer for a command's answer: stdout, or a file. A file appears whole when done(true) is called;
// done(false) leaves things as they were. What is no regular file, such as /dev/null or a pipe, is written as it is.
func (a *app) answer(file string) (w io.Writer, done func(keep bool) error, err error) {
	if file == "" {
		return a.stdout, func(bool) error { return nil }, nil
	}
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target // a link stays a link
	}
	mode := fs.FileMode(0o666)
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			return nil, nil, fmt.Errorf("write %s: %w", file, cause(err))
		}
		return f, func(bool) error { return f.Close() }, nil
	} else if err == nil {
		mode = info.Mode().Perm()
	}
	// os.CreateTemp would make it private; a new file has the mode that the user's mask leaves.
	name := fmt.Sprintf("%s.%d.part", file, os.Getpid())
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, nil, fmt.Errorf("write %s: %w", file, cause(err))
	}
	whole := &wholeFile{file: f, name: file}
	return whole, whole.done, nil
}

// cause is an error without the name of a file that the user never heard of.
func cause(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// wholeFile is written beside its place and renamed when all is there. A write that fails leaves no file.
type wholeFile struct {
	file *os.File
	name string
	err  error // the first
}

func (w *wholeFile) Write(p []byte) (n int, err error) {
	if w.err != nil {
		return 0, w.err
	}
	n, w.err = w.file.Write(p)
	return n, w.err
}

func (w *wholeFile) done(keep bool) error {
	defer os.Remove(w.file.Name()) // of no effect once it is renamed
	err := w.err
	if e := w.file.Close(); err == nil {
		err = e
	}
	if keep && err == nil {
		err = os.Rename(w.file.Name(), w.name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", w.name, cause(err))
	}
	return nil
}
