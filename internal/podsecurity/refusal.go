package podsecurity

import (
	"fmt"
	"strings"

	"k8s.io/pod-security-admission/api"
)

// Refusal says that Pod Security refuses Pods with the sidecars of one SidecarSet.
type Refusal struct {
	level api.Level
	every bool // no Pod can make up for what the sidecars lack
	why   string
	first []string // Namespaces
	more  int
}

const (
	// named is how many Namespaces a text names.
	named = 3
	// most is how many Refusals a text has. There are two levels, and few
	// SidecarSets are judged in another way by an older version.
	most = 3
	// longest is the length of what a Refusal says about sidecars, in bytes. That is
	// enough for four rules about two of them.
	longest = 600
)

func (r *Refusal) add(namespace string) {
	if len(r.first) < named {
		r.first = append(r.first, namespace)
		return
	}
	r.more++
}

// text says what is refused. others stands for the Namespaces that it does not name.
func (r *Refusal) text(others string) string {
	verb, noun := "refuses", "namespace"
	if !r.every {
		verb = "may refuse"
	}
	if len(r.first) > 1 {
		noun = "namespaces"
	}
	if r.more == 0 {
		others = ""
	}
	return fmt.Sprintf("Pod Security (%s) %s Pods with these sidecars in %s %s%s: %s", r.level, verb, noun, strings.Join(r.first, ", "), others, r.why)
}

// Warnings are texts for the user who applies a SidecarSet, one for each Refusal.
func Warnings(refusals []*Refusal) []string {
	var texts []string
	for _, r := range refusals[:min(len(refusals), most)] {
		texts = append(texts, r.text(fmt.Sprintf(" and %d more", r.more)))
	}
	return texts
}

// Message is the same as one text for a condition; "" without Refusals. It does not say how many
// Namespaces there are: the message would change with each Namespace that is created.
func Message(refusals []*Refusal) string {
	var text strings.Builder
	for _, r := range refusals[:min(len(refusals), most)] {
		text.WriteString(" " + r.text(" and others") + ".")
	}
	return strings.TrimPrefix(text.String(), " ")
}
