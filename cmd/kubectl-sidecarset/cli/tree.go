package cli

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// node is a line of a tree, with those below it.
type node struct {
	label, text string
	colour      func(painter, string) string // of the label; nil for none
	children    []*node
}

func (n *node) add(label, text string, colour func(painter, string) string) *node {
	child := &node{label: label, text: text, colour: colour}
	n.children = append(n.children, child)
	return child
}

// draw renders a tree for the output.
func (a *app) draw(tree *node) string {
	return tree.render(a.painter(), a.width(), len(tree.label), "", "")
}

// render puts head before the first line, and tail before the others. Labels get the same width,
// and longer texts are broken at the width of the terminal, if that is not 0.
func (n *node) render(paint painter, width, labels int, head, tail string) string {
	indent := utf8.RuneCountInString(head) + labels + len("  ")
	label := fmt.Sprintf("%-*s", labels, n.label)
	if n.colour != nil {
		label = n.colour(paint, label)
	}
	out := ""
	for i, line := range wrap(n.text, width-indent) {
		if i == 0 {
			line = head + label + "  " + line
		} else {
			line = tail + strings.Repeat(" ", indent-utf8.RuneCountInString(tail)) + line
		}
		out += strings.TrimRight(line, " ") + "\n"
	}
	labels = 0
	for _, child := range n.children {
		labels = max(labels, len(child.label))
	}
	for i, child := range n.children {
		head, below := tail+"├─ ", tail+"│  "
		if i == len(n.children)-1 {
			head, below = tail+"└─ ", tail+"   "
		}
		out += child.render(paint, width, labels, head, below)
	}
	return out
}

// wrap breaks a text into lines of at most width runes, if width leaves room for words.
func wrap(text string, width int) []string {
	if width < 20 {
		return []string{text}
	}
	var lines []string
	line := ""
	for word := range strings.SplitSeq(text, " ") {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// height is the number of lines of the terminal; 0 if the output is none.
func (a *app) height() int {
	file, ok := a.Out.(*os.File)
	if !ok {
		return 0
	}
	_, lines, _ := term.GetSize(int(file.Fd()))
	return lines
}
