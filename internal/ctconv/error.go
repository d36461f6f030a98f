package ctconv

import "fmt"

// Error is one defect of a converted model: which file, which variable, where, what was wanted and what was found.
type Error struct {
	File     string
	Variable string // "" when the defect belongs to no variable
	Offset   int64  // bytes from the start of the file; -1 when the defect has no place in it
	Defect   string // "want …, file has …"
	Advice   string // a command to type or a likely cause; "" when there is none
	Err      error  // what caused it, or nil
}

// Error gives "FILE: VARIABLE at byte N: DEFECT", on one line.
func (e *Error) Error() string {
	where := e.File + ": "
	switch {
	case e.Variable != "" && e.Offset >= 0:
		where += fmt.Sprintf("%s at byte %d: ", e.Variable, e.Offset)
	case e.Variable != "":
		where += e.Variable + ": "
	case e.Offset >= 0:
		where += fmt.Sprintf("at byte %d: ", e.Offset)
	}
	return where + e.Defect
}

// Hint is what the command line prints below the error.
func (e *Error) Hint() string { return e.Advice }

func (e *Error) Unwrap() error { return e.Err }
