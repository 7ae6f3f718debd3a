package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"
)

// read returns the object in the text as kubectl reads it, and nodes that know its places; nothing
// if the text holds nothing but comments.
func (d *Document) read() (object map[string]any, root *yaml.Node, err error) {
	asJSON := []byte(d.text)
	if root, err = nodes(d.text); err != nil && !d.isJSON { // JSON is not quite a part of YAML
		return nil, nil, d.syntaxError(err)
	}
	if !d.isJSON {
		if root == nil {
			return nil, nil, nil
		}
		if asJSON, err = sigsyaml.YAMLToJSONStrict(asJSON); err != nil {
			return nil, nil, d.syntaxError(err)
		}
	}
	var value any
	strict, err := kjson.UnmarshalStrict(asJSON, &value)
	if err = errors.Join(append(strict, err)...); err != nil {
		return nil, nil, d.syntaxError(err)
	}
	if value == nil {
		return nil, nil, nil
	}
	if object, is := value.(map[string]any); is {
		return object, root, nil
	}
	return nil, nil, &Error{File: d.file, Line: d.line + root.Content[0].Line - 1, Err: errors.New("the document is no object; a manifest has apiVersion and kind")}
}

// nodes parses YAML; the result is nil if there is nothing but comments.
func nodes(text string) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(strings.NewReader(text))
	root := new(yaml.Node)
	if err := decoder.Decode(root); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var more yaml.Node
	if err := decoder.Decode(&more); err == nil {
		return nil, fmt.Errorf("line %d: there is another document; begin it with a line that has only ---", more.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return root, nil
}

var placed = regexp.MustCompile(`line (\d+): (.*)`)

// syntaxError gives a parser's error the line in the file.
func (d *Document) syntaxError(err error) error {
	line, message := 0, strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	if found := placed.FindStringSubmatch(message); found != nil {
		n, _ := strconv.Atoi(found[1]) // digits
		line, message = d.line+n-1, found[2]
	}
	message = strings.TrimPrefix(message, "yaml: ")
	isNode := strings.Contains(message, "invalid map key: map[") // what {{ }} is to YAML
	if isNode {
		message = "a name is an object, not a text"
	}
	if before, _, is := strings.Cut(d.text, "{{"); is {
		const hint = "there is a template's {{ }}; render the manifest first, for example with helm template"
		switch {
		case isNode:
			message = hint
		case line > 0:
			message = fmt.Sprintf("%s (line %d: %s)", hint, line, message)
		default:
			message = fmt.Sprintf("%s (%s)", hint, message)
		}
		line = d.line + strings.Count(before, "\n")
	}
	return &Error{File: d.file, Line: line, Err: errors.New(message)}
}

// Write writes the files.
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
			if text != "" && !strings.HasSuffix(text, "\n") {
				text += "\n"
			}
			if _, err := io.WriteString(w, separator+text); err != nil {
				return err
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
	return d.encode(d.value)
}

// Formatted is the document as it was read, in the format that Text gives a changed one, so
// that the two differ only by what was changed.
func (d *Document) Formatted() (string, error) {
	if !d.changed {
		return d.text, nil
	}
	object, _, err := d.read()
	if err != nil {
		return "", err // it was read before
	}
	return d.encode(object)
}

func (d *Document) encode(object map[string]any) (string, error) {
	if d.isJSON {
		var out strings.Builder
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "    ")
		err := encoder.Encode(object)
		return out.String(), err
	}
	text, err := sigsyaml.Marshal(object)
	return string(text), err
}
