// Package manifest reads Kubernetes manifests, finds the Pod templates in them, and writes
// them again. Unchanged documents are written byte for byte. A changed document keeps its values;
// it loses its comments and the order of its members.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// Stdin is the path that means standard input.
const Stdin = "-"

// File is one input, or standard input.
type File struct {
	// Name is the path as it was given, or "stdin".
	Name      string
	Documents []*Document
}

// Document is one document of a file.
type Document struct {
	file      string
	separator string // the line "---" before it, as read; "" if there is none
	text      string // as read
	line      int    // of the first line of text, from 1

	objects []*Object
	value   map[string]any // nil if it holds no object
	root    *yaml.Node     // knows the places of the value; nil for JSON that is no YAML
	isJSON  bool
	changed bool
}

// Object is one Kubernetes object in a document: the document itself, or an item of a List.
type Object struct {
	// APIVersion, Kind, Namespace and Name are as written; "" if they are absent.
	APIVersion, Kind, Namespace, Name string
	// Value is the object as kubectl would send it. Template.Apply changes it.
	Value map[string]any

	document *Document
	path     string // in the document; "" for the document itself
}

// Error is a problem with a place in a file.
type Error struct {
	File   string
	Line   int // 0 if it is not known
	Object string
	Err    error
}

func (e *Error) Error() string {
	place := e.File
	if e.Line > 0 {
		place = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	if e.Object != "" {
		place += ": " + e.Object
	}
	return place + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Read reads the manifests at these paths. Stdin reads from stdin. Of a directory it reads
// the files that end in .yaml, .yml or .json, and, if recursive is set, those below it. With an
// error about some files, it returns the others.
func Read(paths []string, recursive bool, stdin io.Reader) (files []*File, err error) {
	var all []error
	add := func(file *File, err error) {
		if err != nil {
			all = append(all, err)
			return
		}
		files = append(files, file)
	}
	for _, path := range paths {
		if path == Stdin {
			text, err := io.ReadAll(stdin)
			if err != nil {
				all = append(all, &Error{File: "stdin", Err: err})
				continue
			}
			add(Parse("stdin", text))
			continue
		}
		found, err := list(path, recursive)
		if err != nil {
			all = append(all, err)
			continue
		}
		for _, name := range found {
			text, err := os.ReadFile(name)
			if err != nil {
				all = append(all, err) // names the file
				continue
			}
			add(Parse(name, text))
		}
	}
	return files, errors.Join(all...)
}

// list returns the files that a path stands for, in lexical order.
func list(path string, recursive bool) (files []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	err = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != path && !recursive:
			return fs.SkipDir
		case !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)):
			files = append(files, name)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: the directory has no file that ends in .yaml, .yml or .json; name a file, or read below it with --recursive", path)
	}
	return files, err
}

// Parse reads the documents of one file.
func Parse(name string, text []byte) (*File, error) {
	file := &File{Name: name}
	var all []error
	for _, d := range split(name, string(text)) {
		for _, d := range d.stream() {
			all = append(all, d.parse())
			file.Documents = append(file.Documents, d)
		}
	}
	if err := errors.Join(all...); err != nil {
		return nil, err
	}
	return file, nil
}

// stream cuts several JSON objects that follow each other, as jq prints them, into documents of
// their own. kubectl reads them so. Another document stays as it is.
func (d *Document) stream() []*Document {
	if text := strings.TrimSpace(d.text); !strings.HasPrefix(text, "{") || json.Valid([]byte(text)) {
		return []*Document{d}
	}
	var documents []*Document
	decoder := json.NewDecoder(strings.NewReader(d.text))
	begins, line, separator := 0, d.line, d.separator
	for {
		var value json.RawMessage
		if err := decoder.Decode(&value); errors.Is(err, io.EOF) {
			last := documents[len(documents)-1]
			last.text += d.text[begins:]
			return documents
		} else if err != nil {
			return []*Document{d} // YAML, perhaps
		}
		ends := int(decoder.InputOffset())
		if rest := d.text[ends:]; strings.HasPrefix(strings.TrimLeft(rest, " \t\r"), "\n") {
			ends += strings.Index(rest, "\n") + 1
		}
		text := d.text[begins:ends]
		documents = append(documents, &Document{file: d.file, separator: separator, text: text, line: line})
		begins, line, separator = ends, line+strings.Count(text, "\n"), ""
	}
}

// split cuts a file at the lines that begin a document. In YAML such a line is a separator
// wherever it stands, even in a text.
func split(name, text string) []*Document {
	current := &Document{file: name, line: 1}
	documents := []*Document{current}
	var body strings.Builder
	at := 0
	for line := range strings.Lines(text) {
		at++
		if isSeparator(line) {
			current.text = body.String()
			body.Reset()
			if at == 1 {
				current.separator, current.line = line, 2
				continue
			}
			current = &Document{file: name, separator: line, line: at + 1}
			documents = append(documents, current)
			continue
		}
		body.WriteString(line)
	}
	current.text = body.String()
	return documents
}

func isSeparator(line string) bool {
	rest, ok := strings.CutPrefix(line, "---")
	rest = strings.TrimSpace(rest)
	return ok && (rest == "" || strings.HasPrefix(rest, "#"))
}

func (d *Document) parse() error {
	text := strings.TrimSpace(d.text)
	d.isJSON = strings.HasPrefix(text, "{") && json.Valid([]byte(text))
	var err error
	if d.value, d.root, err = d.read(); err == nil && d.value != nil {
		d.addObject(d.value, "")
	}
	return err
}

// addObject adds the object, or the items of a List.
func (d *Document) addObject(value map[string]any, path string) {
	items, isList := value["items"].([]any)
	kind, _ := value["kind"].(string)
	if isList && strings.HasSuffix(kind, "List") {
		for i, item := range items {
			if object, ok := item.(map[string]any); ok {
				if of, typed := strings.CutSuffix(kind, "List"); typed && of != "" && object["kind"] == nil { // as API servers list them
					object["kind"], object["apiVersion"] = of, value["apiVersion"]
				}
				d.addObject(object, strings.TrimPrefix(fmt.Sprintf("%s.items[%d]", path, i), "."))
			}
		}
		return
	}
	text := func(of map[string]any, name string) string { s, _ := of[name].(string); return s }
	metadata, _ := value["metadata"].(map[string]any)
	d.objects = append(d.objects, &Object{
		APIVersion: text(value, "apiVersion"), Kind: kind, Namespace: text(metadata, "namespace"), Name: text(metadata, "name"),
		Value: value, document: d, path: path,
	})
}

// Objects returns the objects of the document, with the items of a List one by one.
func (d *Document) Objects() []*Object { return d.objects }

// Changed reports whether an object of the document was changed.
func (d *Document) Changed() bool { return d.changed }

// Describe names the object as messages do.
func (o *Object) Describe() string {
	name := o.Name
	if name == "" {
		metadata, _ := o.Value["metadata"].(map[string]any)
		if generate, _ := metadata["generateName"].(string); generate != "" {
			name = generate + "*"
		}
	}
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	return o.Kind + " " + name
}

// AsStored returns the object of a cluster-scoped kind as API servers store it: without a namespace,
// and with a name in the place of generateName, of which n is the end.
func (o *Object) AsStored(n int) map[string]any {
	metadata, _ := o.Value["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	delete(metadata, "namespace")
	if prefix, _ := metadata["generateName"].(string); o.Name == "" && prefix != "" {
		metadata["name"] = fmt.Sprintf("%s%05d", prefix, n)
	}
	out := maps.Clone(o.Value)
	if metadata != nil {
		out["metadata"] = metadata
	}
	return out
}

// Errorf returns an error that names the file, the line and the object.
func (o *Object) Errorf(format string, args ...any) error {
	return &Error{File: o.document.file, Line: o.Line(), Object: o.Describe(), Err: fmt.Errorf(format, args...)}
}

// File is the name of the file with the object.
func (o *Object) File() string { return o.document.file }

// Line is where the object begins in its file, from 1.
func (o *Object) Line() int {
	line, _ := o.Place("")
	return line
}

// Place returns the line and column, from 1, of a field such as spec.containers[0].image: of
// its name, or of the element. If the field is absent, it is that of the nearest field above.
func (o *Object) Place(path string) (line, column int) {
	d := o.document
	if d.root == nil {
		return d.line, 1
	}
	node := d.root.Content[0]
	for _, step := range steps(o.path) {
		if _, node = find(node, step); node == nil { // the value has it
			return d.line, 1
		}
	}
	at := node
	for _, step := range steps(path) {
		name, value := find(node, step)
		if value == nil {
			break
		}
		node, at = value, name
	}
	return d.line + at.Line - 1, at.Column
}

// find returns a member with the node of its name, or an element twice; nil if it is absent.
// It looks into aliases and merge keys.
func find(node *yaml.Node, step string) (name, value *yaml.Node) {
	switch node.Kind {
	case yaml.AliasNode:
		return find(node.Alias, step)
	case yaml.MappingNode:
		if at := memberIndex(node, step); at >= 0 {
			return node.Content[at-1], node.Content[at]
		}
		if at := memberIndex(node, "<<"); at >= 0 && step != "<<" {
			return find(node.Content[at], step)
		}
	case yaml.SequenceNode:
		if at, err := strconv.Atoi(step); err == nil && at >= 0 && at < len(node.Content) {
			return node.Content[at], node.Content[at]
		}
	}
	return nil, nil
}

// memberIndex is the place of a member's value in the content of a mapping; -1 if it is absent.
func memberIndex(node *yaml.Node, name string) int {
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == name {
			return i + 1
		}
	}
	return -1
}

// steps splits a field path: spec.containers[0].metadata[app.kubernetes.io/name].
func steps(path string) (steps []string) {
	for path != "" {
		if inner, rest, ok := strings.Cut(strings.TrimPrefix(path, "["), "]"); ok && path[0] == '[' {
			steps, path = append(steps, inner), strings.TrimPrefix(rest, ".")
			continue
		}
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			return append(steps, path)
		}
		steps = append(steps, path[:end])
		path = strings.TrimPrefix(path[end:], ".")
	}
	return steps
}
