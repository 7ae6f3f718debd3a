// Package doctor looks at an installation of the operator and says what is wrong with it, and
// what to do. What a SidecarSet needs, and what a Pod gets, comes from the packages of the
// operator; what API servers do with Pods, they are asked under dry-run.
package doctor

import (
	"context"
	"fmt"
	"time"
)

// Level says how bad a Finding is.
type Level string

// An Error keeps Pods from being injected or updated, or soon will. A Warning deserves a look.
const (
	Error   Level = "error"
	Warning Level = "warning"
)

// Finding is one thing that is wrong.
type Finding struct {
	Level   Level  `json:"level"`
	Object  string `json:"object"` // its kind and name
	Problem string `json:"problem"`
	Remedy  string `json:"remedy"`
	Page    string `json:"page"` // a path in the repository, with an anchor
}

// Result is what one check found. If Skipped is not empty, it says what the check could not look
// at, and why; then the findings are not complete.
type Result struct {
	Check    string    `json:"check"`
	Findings []Finding `json:"findings,omitempty"`
	Skipped  []string  `json:"skipped,omitempty"`
}

func (r *Result) add(level Level, object, page, remedy, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{level, object, fmt.Sprintf(format, args...), remedy, page})
}

func (r *Result) skip(err error) { r.Skipped = append(r.Skipped, err.Error()) }

var checks = []struct {
	name string
	look func(*facts, context.Context, *Result)
	// sidecarSets says that the check needs the SidecarSets and the Namespaces.
	sidecarSets bool
}{
	{"injection", (*facts).lookAtInjection, true}, // nothing else says what API servers do
	{"crd", (*facts).lookAtCRD, false},
	{"webhooks", (*facts).lookAtWebhooks, false},
	{"injectors", (*facts).lookAtInjectors, false},
	{"replicas", (*facts).lookAtReplicas, false},
	{"ca", (*facts).lookAtSecret, false},
	{"sidecarsets", (*facts).lookAtSidecarSets, true},
}

// deadline bounds each check, and what they share.
const deadline = 30 * time.Second

// Run makes all checks and returns their results in a fixed order. It calls slow, from another
// goroutine, with what takes longer than a second. The error says why nothing could be looked at.
func Run(ctx context.Context, c Cluster, slow func(what string)) ([]Result, error) {
	within := func(what string, do func(context.Context)) {
		late := time.AfterFunc(time.Second, func() { slow(what) })
		defer late.Stop()
		ctx, cancel := context.WithTimeout(ctx, deadline)
		defer cancel()
		do(ctx)
	}
	var f *facts
	var err error
	within("what is installed", func(ctx context.Context) { f, err = gather(ctx, c) })
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(checks))
	for i, check := range checks {
		r := &results[i]
		if r.Check = check.name; check.sidecarSets && f.unread != nil {
			r.skip(f.unread)
			continue
		}
		within(check.name, func(ctx context.Context) { check.look(f, ctx, r) })
	}
	return results, ctx.Err()
}

// Count returns the number of findings of a level.
func Count(results []Result, level Level) (n int) {
	for _, r := range results {
		for _, f := range r.Findings {
			if f.Level == level {
				n++
			}
		}
	}
	return n
}
