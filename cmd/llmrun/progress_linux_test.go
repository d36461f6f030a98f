package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a terminal, and shown gives what was written to it, once.
func terminal(t *testing.T) (tty *os.File, shown func() string) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("this machine has no pseudoterminals: ", err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	text := make(chan string)
	go func() {
		all, _ := io.ReadAll(screen) // it ends with an error, when the terminal has been closed
		text <- string(all)
	}()
	return tty, func() string {
		tty.Close()
		return <-text
	}
}

// TestReadAhead: what is read from disk is shown on a terminal, and nothing is where there is nothing to read.
func TestReadAhead(t *testing.T) {
	interrupted := errors.New("interrupted")
	cold := func(_ context.Context, show func(done, total int64)) error {
		show(0, 4e9)
		show(1e9, 4e9)
		return interrupted
	}
	warm := func(context.Context, func(done, total int64)) error { return nil }

	tty, shown := terminal(t)
	err := (&app{stderr: tty}).readAhead(t.Context(), "DIR", cold, true)
	if got := shown(); !strings.Contains(got, "read DIR") || !strings.Contains(got, "/4.0 GB") || !errors.Is(err, interrupted) {
		t.Errorf("a cold file: %q, %v", got, err)
	}
	for _, c := range []struct {
		what   string
		read   func(context.Context, func(done, total int64)) error
		wanted bool
	}{{"a warm file", warm, true}, {"no bars wanted", cold, false}} {
		tty, shown := terminal(t)
		_ = (&app{stderr: tty}).readAhead(t.Context(), "DIR", c.read, c.wanted)
		if got := shown(); got != "" {
			t.Errorf("%s: %q", c.what, got)
		}
	}
	var pipe bytes.Buffer
	if _ = (&app{stderr: &pipe}).readAhead(t.Context(), "DIR", cold, true); pipe.Len() > 0 {
		t.Errorf("no terminal: %q", pipe.String())
	}
}
