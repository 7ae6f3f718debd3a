package manifest

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// style is how an author writes.
type style struct {
	indent  int
	compact bool // the elements of a list begin under the name of the list; of JSON: all is in one line
}

// styleOfJSON is that of a text: its second line shows how deep one level is.
func styleOfJSON(text string) style {
	_, second, ok := strings.Cut(strings.TrimSpace(text), "\n")
	return style{indent: len(second) - len(strings.TrimLeft(second, " ")), compact: !ok}
}

func styleOf(root *yaml.Node) style {
	s, lists, found := style{indent: 2, compact: true}, false, false
	var look func(node *yaml.Node)
	look = func(node *yaml.Node) {
		if node.Kind == yaml.MappingNode && node.Style&yaml.FlowStyle == 0 {
			for i := 0; i+1 < len(node.Content); i += 2 {
				name, value := node.Content[i], node.Content[i+1]
				isBlock := value.Style&yaml.FlowStyle == 0 && len(value.Content) > 0
				switch {
				case isBlock && value.Kind == yaml.MappingNode && !found:
					s.indent, found = max(2, value.Column-name.Column), true
				case isBlock && value.Kind == yaml.SequenceNode && !lists:
					s.compact, lists = value.Column == name.Column, true
				}
			}
		}
		for _, part := range node.Content {
			look(part)
		}
	}
	look(root)
	return s
}

// Write writes the files: what nobody changed as it was read.
func Write(w io.Writer, files []*File) error {
	for i, file := range files {
		for j, d := range file.Documents {
			separator := d.separator
			if separator == "" && i > 0 && j == 0 {
				separator = "---\n"
			}
			text, err := d.Text()
			if err != nil {
				return err
			}
			if _, err := io.WriteString(w, separator+text); err != nil {
				return err
			}
			if text != "" && !strings.HasSuffix(text, "\n") {
				if _, err := io.WriteString(w, "\n"); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Text is the document as it is now.
func (d *Document) Text() (string, error) {
	if !d.changed {
		return d.text, nil
	}
	return d.encode(d.root)
}

// Formatted is the document as it was read, in the format that Text gives a changed one, so
// that the two differ only by what was changed.
func (d *Document) Formatted() (string, error) {
	if !d.changed {
		return d.text, nil
	}
	root, _, err := d.read()
	if err != nil {
		return "", err // it was read before
	}
	return d.encode(root)
}

func (d *Document) encode(root *yaml.Node) (string, error) {
	encode := encodeYAML
	if d.isJSON {
		encode = encodeJSON
	}
	text, err := encode(root, d.style)
	if err != nil {
		return "", &Error{File: d.file, Line: d.line, Err: err}
	}
	if strings.Contains(text, blank) {
		text = blankTwice.ReplaceAllString(text, "\n")
		text = strings.ReplaceAll(blankLine.ReplaceAllString(text, ""), blank, "")
	}
	if strings.Contains(d.text, "\r\n") {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	return text, nil
}

func encodeYAML(root *yaml.Node, s style) (string, error) {
	var out strings.Builder
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(s.indent)
	if s.compact {
		encoder.CompactSeqIndent()
	}
	err := encoder.Encode(root)
	return out.String(), err
}

func encodeJSON(root *yaml.Node, s style) (string, error) {
	var compact, out bytes.Buffer
	if err := writeJSON(&compact, root.Content[0]); err != nil {
		return "", err
	}
	shape := func() error { return json.Indent(&out, compact.Bytes(), "", strings.Repeat(" ", s.indent)) }
	if s.compact {
		shape = func() error { return json.Compact(&out, compact.Bytes()) }
	}
	err := shape()
	return out.String() + "\n", err
}

// writeJSON writes a node of a JSON document, with members in their order.
func writeJSON(out *bytes.Buffer, node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		if node.Tag != "!!str" {
			out.WriteString(node.Value)
			return nil
		}
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(node.Value)
	}
	brackets := "[]"
	if node.Kind == yaml.MappingNode {
		brackets = "{}"
	}
	out.WriteByte(brackets[0])
	for i, part := range node.Content {
		switch {
		case i == 0:
		case node.Kind == yaml.MappingNode && i%2 == 1:
			out.WriteByte(':')
		default:
			out.WriteByte(',')
		}
		if err := writeJSON(out, part); err != nil {
			return err
		}
	}
	out.WriteByte(brackets[1])
	return nil
}

// blank is a comment for an empty line, which the encoder would drop. No document has it: YAML
// has no such character.
const blank = "#\x01"

var (
	blankLine = regexp.MustCompile("(?m)^ *" + blank + "$")
	// blankTwice is an empty line that the encoder has written itself, after a comment, and
	// ours.
	blankTwice = regexp.MustCompile("(?m)^\n *" + blank + "\n")
)

// prepare makes a document ready to be written: it marks the empty lines above members and
// elements, and changes how values are written that the encoder would write as other values.
func prepare(root *yaml.Node, text string) {
	lines := strings.Split(text, "\n")
	isBlank := func(line int) bool {
		return line > 0 && line <= len(lines) && strings.TrimSpace(lines[line-1]) == ""
	}
	mark := func(node *yaml.Node) {
		above := node.Line - 1
		if node.HeadComment != "" {
			above -= strings.Count(node.HeadComment, "\n") + 1
		}
		for ; isBlank(above); above-- {
			node.HeadComment = strings.TrimSuffix(blank+"\n"+node.HeadComment, "\n")
		}
	}
	var look func(node *yaml.Node, line int, inLines bool)
	look = func(node *yaml.Node, line int, inLines bool) { // line has the name of the value, or begins the element
		inLines = inLines && node.Style&yaml.FlowStyle == 0
		switch {
		case node.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 && endsInEmptyLines(node.Value):
			node.Style = yaml.DoubleQuotedStyle
		case isNull(node) && !inLines:
			node.Value = "null"
		}
		for i, part := range node.Content {
			if isValue := node.Kind == yaml.MappingNode && i%2 == 1; isValue {
				look(part, node.Content[i-1].Line, inLines)
				continue
			}
			if inLines && part.Line > line {
				mark(part)
			}
			look(part, part.Line, inLines)
		}
	}
	look(root.Content[0], 1, true)
}
