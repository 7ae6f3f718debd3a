package cli

import (
	"os"

	"golang.org/x/term"
)

// painter colours text, if the output is a terminal and NO_COLOR is not set.
type painter bool

func (a *app) painter() painter {
	file, ok := a.Out.(*os.File)
	return painter(ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd())))
}

func (p painter) colour(code, text string) string {
	if !p || text == "" {
		return text
	}
	end := ""
	if last := len(text) - 1; text[last] == '\n' {
		text, end = text[:last], "\n"
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m" + end
}

func (p painter) red(text string) string    { return p.colour("31", text) }
func (p painter) green(text string) string  { return p.colour("32", text) }
func (p painter) yellow(text string) string { return p.colour("33", text) }
func (p painter) bold(text string) string   { return p.colour("1", text) }
func (p painter) faint(text string) string  { return p.colour("2", text) }
