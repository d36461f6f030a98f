package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"llmrun/internal/parity"
	"llmrun/internal/report"
)

// faceFlags are the forms of a finished comparison beside the answer.
type faceFlags struct {
	html, junit     string // files; "": none
	github          bool
	command, replay string // for the page
}

func (f *faceFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.html, "html", "", "write a page for people to `FILE`; it needs nothing else and works offline")
	flags.StringVar(&f.junit, "junit", "", "write JUnit XML to `FILE`, for build servers")
	flags.BoolVar(&f.github, "github", os.Getenv("GITHUB_ACTIONS") == "true",
		"write annotations to stderr, and a summary to $GITHUB_STEP_SUMMARY; on by itself in GitHub Actions")
}

// check fails now rather than after all the work.
func (f *faceFlags) check(output string) error {
	taken := map[string]string{}
	for _, face := range [][2]string{{"--output", output}, {"--html", f.html}, {"--junit", f.junit}} {
		if err := checkOutput(face[0], face[1]); err != nil {
			return err
		}
		if other := taken[face[1]]; other != "" && face[1] != "" {
			return fmt.Errorf("%s and %s: want two files, both are %s", other, face[0], face[1])
		}
		taken[face[1]] = face[0]
	}
	return nil
}

// write writes all of them.
func (f *faceFlags) write(a *app, c *parity.Comparison, decode func([]int) string) error {
	if f.html != "" {
		page := report.PageOptions{Decode: decode, Command: f.command, Replay: f.replay, Machine: c.Env.(environment).lines()}
		if err := a.writeFile(f.html, func(w io.Writer) error { return report.HTML(w, c, page) }); err != nil {
			return err
		}
	}
	if f.junit != "" {
		if err := a.writeFile(f.junit, func(w io.Writer) error { return report.JUnit(w, c) }); err != nil {
			return err
		}
	}
	if !f.github {
		return nil
	}
	if err := report.Annotations(a.stderr, c); err != nil {
		return err
	}
	return appendSummary(os.Getenv("GITHUB_STEP_SUMMARY"), c)
}

// writeFile makes a file that appears whole.
func (a *app) writeFile(file string, render func(io.Writer) error) error {
	var b bytes.Buffer
	if err := render(&b); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	w, done, err := a.answer(file)
	if err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	if e := done(err == nil); err == nil {
		err = e
	}
	return err
}

// appendSummary adds to the page that GitHub makes of a job, to which other steps add, too.
func appendSummary(file string, c *parity.Comparison) error {
	if file == "" {
		return nil
	}
	w, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("write the step summary: %w", err)
	}
	err = report.Summary(w, c)
	if e := w.Close(); err == nil {
		err = e
	}
	return err
}

var (
	outputFlags = []string{"html", "junit", "github", "json", "output", "quiet", "verbose", "color", "no-progress", "trace-file"}
	promptFlags = []string{"prompts", "prompt", "ids"}
)

// commandLine is what was typed, in a fixed order and without what only says where the answer goes; replay also leaves out the prompts.
func commandLine(flags *pflag.FlagSet) (command, replay string) {
	command, replay = "llmrun compare", "llmrun compare"
	flags.Visit(func(f *pflag.Flag) {
		if slices.Contains(outputFlags, f.Name) {
			return
		}
		word := " --" + f.Name + "=" + shellWord(f.Value.String())
		if f.Value.Type() == "bool" && f.Value.String() == "true" {
			word = " --" + f.Name
		}
		command += word
		if !slices.Contains(promptFlags, f.Name) {
			replay += word
		}
	})
	return command, replay
}

// shellWord quotes s for a shell, if it needs that.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./,:+@%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
