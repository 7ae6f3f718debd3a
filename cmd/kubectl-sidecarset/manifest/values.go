package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	sigsyaml "sigs.k8s.io/yaml"
)

// readYAML returns the nodes of a document, and its value as kubectl reads it; nothing if it
// holds nothing but comments.
//
// kubectl reads YAML 1.1, in which yes and on are booleans. The nodes are of a parser for
// YAML 1.2. valueOf translates what both parsers read alike. For everything else, kubectl's
// parser reads the document once more.
func readYAML(text string) (root *yaml.Node, value any, err error) {
	decoder := yaml.NewDecoder(strings.NewReader(text))
	root = new(yaml.Node)
	if err := decoder.Decode(root); errors.Is(err, io.EOF) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, err
	}
	var more yaml.Node
	if err := decoder.Decode(&more); err == nil {
		return nil, nil, fmt.Errorf("line %d: there is another document; begin it with a line that has only ---", more.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	if value, ok := valueOf(root.Content[0]); ok && !strings.Contains(text, "!") { // it may have tags
		return root, value, nil
	}
	asJSON, err := sigsyaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, nil, err
	}
	return root, value, utiljson.Unmarshal(asJSON, &value)
}

// valueOf returns the value of a node without tags as kubectl reads it. It is not ok for
// aliases, merge keys, names that are not strings, and names that are present twice.
func valueOf(node *yaml.Node) (value any, ok bool) {
	switch node.Kind {
	case yaml.MappingNode:
		object := make(map[string]any, len(node.Content)/2)
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, ok := valueOf(node.Content[i])
			name, isString := key.(string)
			if _, twice := object[name]; !ok || !isString || twice || name == "<<" {
				return nil, false
			}
			if object[name], ok = valueOf(node.Content[i+1]); !ok {
				return nil, false
			}
		}
		return object, true
	case yaml.SequenceNode:
		list := make([]any, len(node.Content))
		for i, part := range node.Content {
			if list[i], ok = valueOf(part); !ok {
				return nil, false
			}
		}
		return list, true
	case yaml.ScalarNode:
		if node.Style != 0 { // quoted, or a text in lines
			return node.Value, true
		}
		return plain(node.Value)
	}
	return nil, false
}

// plain returns the value of a text without quotes.
func plain(text string) (value any, ok bool) {
	switch text {
	case "", "~", "null", "Null", "NULL":
		return nil, true
	case "true", "True", "TRUE", "yes", "Yes", "YES", "y", "Y", "on", "On", "ON":
		return true, true
	case "false", "False", "FALSE", "no", "No", "NO", "n", "N", "off", "Off", "OFF":
		return false, true
	}
	if !mayBeNumber(text) {
		return text, true
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(n, 10) == text {
		return n, true
	}
	asJSON, err := sigsyaml.YAMLToJSON([]byte("v: " + text))
	var object map[string]any
	if err != nil || utiljson.Unmarshal(asJSON, &object) != nil || len(object) != 1 {
		return nil, false
	}
	return object["v"], true
}

// mayBeNumber reports whether a text has only characters of numbers in YAML 1.1, such as
// 0x1F, 1_000, 1e-3 and .inf, and begins like one.
func mayBeNumber(text string) bool {
	return strings.ContainsRune("+-.0123456789", rune(text[0])) && strings.Trim(text, "+-._0123456789abcdefABCDEFxXoOiInN") == ""
}

// isString reports whether kubectl reads a text without quotes as a string.
func isString(text string) bool {
	value, ok := plain(text)
	_, isString := value.(string)
	return ok && isString && text != "<<"
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

// readJSON is readYAML for JSON, which is not quite a part of YAML.
func readJSON(text string) (root *yaml.Node, value any, err error) {
	content, err := nodeOf([]byte(text))
	if err != nil {
		return nil, nil, err
	}
	return &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{content}}, value, utiljson.Unmarshal([]byte(text), &value)
}

// nodeOf returns JSON as YAML in lines, with members in the same order.
func nodeOf(value []byte) (*yaml.Node, error) {
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	r := jsonReader{decoder: decoder, text: value, line: 1}
	return r.node()
}

// jsonReader knows the line and the column of each value.
type jsonReader struct {
	decoder                *json.Decoder
	text                   []byte
	read, line, lineBegins int
}

// token returns the next token, and a node with its place.
func (r *jsonReader) token() (json.Token, *yaml.Node, error) {
	begins := int(r.decoder.InputOffset())
	begins += len(r.text[begins:]) - len(bytes.TrimLeft(r.text[begins:], " \t\r\n,:"))
	for ; r.read < begins; r.read++ {
		if r.text[r.read] == '\n' {
			r.line, r.lineBegins = r.line+1, r.read+1
		}
	}
	token, err := r.decoder.Token()
	return token, &yaml.Node{Kind: yaml.ScalarNode, Line: r.line, Column: begins - r.lineBegins + 1}, err
}

func (r *jsonReader) node() (*yaml.Node, error) {
	token, node, err := r.token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Delim:
		return node, r.parts(node, token == '{')
	case string:
		setText(node, token)
	case json.Number:
		node.Tag, node.Value = "!!int", token.String()
		if strings.ContainsAny(node.Value, ".eE") {
			node.Tag = "!!float"
		}
	case bool:
		node.Tag, node.Value = "!!bool", strconv.FormatBool(token)
	default:
		node.Tag, node.Value = "!!null", "null"
	}
	return node, nil
}

// parts reads the members of an object, or the elements of a list, and the closing bracket.
func (r *jsonReader) parts(node *yaml.Node, isObject bool) error {
	node.Kind, node.Tag = yaml.SequenceNode, "!!seq"
	names := map[string]bool{}
	if isObject {
		node.Kind, node.Tag = yaml.MappingNode, "!!map"
	}
	for r.decoder.More() {
		part, err := r.node()
		if err != nil {
			return err
		}
		if isName := isObject && len(node.Content)%2 == 0; isName && names[part.Value] {
			return fmt.Errorf("line %d: key %q already set in map", part.Line, part.Value)
		} else if isName {
			names[part.Value] = true
		}
		node.Content = append(node.Content, part)
	}
	if len(node.Content) == 0 {
		node.Style = yaml.FlowStyle
	}
	_, err := r.decoder.Token()
	return err
}

// text returns a string that kubectl reads as a string, whatever it holds.
func text(value string) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode}
	setText(node, value)
	return node
}

func setText(node *yaml.Node, value string) {
	node.Tag, node.Value = "!!str", value
	if !isString(value) || endsInEmptyLines(value) {
		node.Style = yaml.DoubleQuotedStyle
	}
}

// endsInEmptyLines reports whether a text in lines would end at the next comment, which the
// encoder begins with an empty line.
func endsInEmptyLines(text string) bool { return text == "\n" || strings.HasSuffix(text, "\n\n") }
