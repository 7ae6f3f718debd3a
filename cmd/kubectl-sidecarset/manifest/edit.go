package manifest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// Operation is one operation of a JSON patch (RFC 6902): add, replace or remove.
type Operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value"`
}

// Apply carries out a JSON patch of the Pod on the template.
func (t *Template) Apply(patch []Operation) error {
	if len(patch) > 0 {
		for _, node := range append(slices.Clone(t.above), t.node) {
			t.document.unshare(node)
		}
	}
	places := t.places()
	for _, op := range patch {
		op.Path, places = ofVolumes(op, places)
		if err := t.apply(op); err != nil {
			return t.Errorf("%s %s: %w", op.Op, op.Path, err)
		}
	}
	t.document.changed = t.document.changed || len(patch) > 0
	return nil
}

// ofVolumes is the path in the template of an operation on the Pod, which has volumes besides.
func ofVolumes(op Operation, places []int) (string, []int) {
	index, is := strings.CutPrefix(op.Path, "/spec/volumes/")
	at, err := strconv.Atoi(index)
	if !is || err != nil || at > len(places) || op.Op != "add" && (at == len(places) || places[at] < 0) {
		return op.Path, places
	}
	if op.Op != "add" {
		return fmt.Sprintf("/spec/volumes/%d", places[at]), places
	}
	place := 0 // after the last one before it
	for _, before := range places[:at] {
		place = max(place, before+1)
	}
	if at == len(places) {
		return "/spec/volumes/-", append(places, place)
	}
	places = slices.Insert(places, at, place)
	for i := at + 1; i < len(places); i++ {
		if places[i] >= 0 {
			places[i]++
		}
	}
	return fmt.Sprintf("/spec/volumes/%d", place), places
}

func (t *Template) apply(op Operation) error {
	tokens := strings.Split(strings.TrimPrefix(op.Path, "/"), "/")
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for i := range tokens {
		tokens[i] = unescape.Replace(tokens[i])
	}
	parent := t.node
	inLines(parent)
	for i, token := range tokens[:len(tokens)-1] {
		next := child(parent, token)
		switch missing := next == nil && parent.Kind == yaml.MappingNode && memberIndex(parent, "<<") < 0; {
		case missing && i == 0: // a template without metadata
			next = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			setMember(parent, token, next)
		case missing && i == 1 && token == "volumes": // the Pod has those of claims
			next = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
			setMember(parent, token, next)
		}
		if next == nil {
			return fmt.Errorf("%s is not there; if it comes from a YAML merge key (<<), write it out", token)
		}
		if isNull(next) {
			kind, tag := yaml.MappingNode, "!!map"
			if token == "volumes" {
				kind, tag = yaml.SequenceNode, "!!seq"
			}
			*next = yaml.Node{Kind: kind, Tag: tag, HeadComment: next.HeadComment, LineComment: next.LineComment, FootComment: next.FootComment}
		}
		t.document.unshare(next)
		parent = next
		inLines(parent)
	}
	last := tokens[len(tokens)-1]
	var value *yaml.Node
	if op.Op != "remove" {
		var err error
		if value, err = nodeOf(op.Value); err != nil {
			return err
		}
	}
	if old := child(parent, last); old != nil && op.Op != "add" {
		t.document.release(old)
	}
	if parent.Kind == yaml.SequenceNode {
		return editSequence(parent, op.Op, last, value)
	}
	switch op.Op {
	case "remove":
		if at := memberIndex(parent, last); at >= 0 {
			parent.Content = append(parent.Content[:at-1], parent.Content[at+1:]...)
		}
	default:
		setMember(parent, last, value)
	}
	return nil
}

func editSequence(list *yaml.Node, op, index string, value *yaml.Node) error {
	at := len(list.Content)
	if index != "-" {
		var err error
		if at, err = strconv.Atoi(index); err != nil || at < 0 || at > len(list.Content) || (op != "add" && at == len(list.Content)) {
			return fmt.Errorf("the list has no element %s", index)
		}
	}
	switch op {
	case "add":
		list.Content = append(list.Content[:at], append([]*yaml.Node{value}, list.Content[at:]...)...)
	case "replace":
		list.Content[at] = value
	case "remove":
		list.Content = append(list.Content[:at], list.Content[at+1:]...)
	}
	return nil
}

// inLines writes an object or a list in lines, not as {…} or […]. The encoder does so only if
// what is around it is in lines, too.
func inLines(node *yaml.Node) { node.Style &^= yaml.FlowStyle }

func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag == "!!null" }

// child returns a member or an element, ready to be edited; nil if it is absent.
func child(node *yaml.Node, name string) *yaml.Node {
	switch node.Kind {
	case yaml.MappingNode:
		if at := memberIndex(node, name); at >= 0 {
			return own(node, at)
		}
	case yaml.SequenceNode:
		if at, err := strconv.Atoi(name); err == nil && at >= 0 && at < len(node.Content) {
			return own(node, at)
		}
	}
	return nil
}

func member(node *yaml.Node, name string) *yaml.Node {
	if at := memberIndex(node, name); at >= 0 {
		return own(node, at)
	}
	return nil
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

func setMember(node *yaml.Node, name string, value *yaml.Node) {
	if at := memberIndex(node, name); at >= 0 {
		old := node.Content[at]
		value.HeadComment, value.LineComment, value.FootComment = old.HeadComment, old.LineComment, old.FootComment
		if value.Kind != yaml.ScalarNode { // it begins in the next line
			node.Content[at-1].LineComment, value.LineComment = old.LineComment, ""
		}
		node.Content[at] = value
		return
	}
	node.Content = append(node.Content, text(name), value)
}

// own returns a part of a node. A part that is an alias of another one becomes a copy first,
// so that an edit does not change the other places.
func own(node *yaml.Node, at int) *yaml.Node {
	if part := node.Content[at]; part.Kind == yaml.AliasNode {
		node.Content[at] = clone(part.Alias)
	}
	return node.Content[at]
}

// unshare makes the aliases of a node copies of it, so that an edit of the node does not
// change them.
func (d *Document) unshare(node *yaml.Node) {
	if node.Anchor == "" {
		return
	}
	var look func(*yaml.Node)
	look = func(parent *yaml.Node) {
		for i, part := range parent.Content {
			if part.Kind == yaml.AliasNode && part.Alias == node {
				parent.Content[i] = clone(node)
				continue
			}
			look(part)
		}
	}
	look(d.root)
	node.Anchor = ""
}

// release is unshare for a node that goes, with all its parts.
func (d *Document) release(node *yaml.Node) {
	for _, part := range node.Content {
		d.release(part)
	}
	d.unshare(node)
}

func clone(node *yaml.Node) *yaml.Node {
	c := *node
	c.Anchor = ""
	c.Content = make([]*yaml.Node, len(node.Content))
	for i, part := range node.Content {
		if part.Kind == yaml.AliasNode {
			c.Content[i] = part
			continue
		}
		c.Content[i] = clone(part)
	}
	return &c
}
