package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/status"
)

// progress remembers when the rollout of each SidecarSet last moved, and since when its
// content cannot be recorded. It is safe for concurrent use.
type progress struct {
	mu    sync.Mutex
	known map[string]*moving
}

// moving is about one SidecarSet. Only a reconcile of this SidecarSet uses it, and the queue
// lets one of them run at a time.
type moving struct {
	uid types.UID
	status.Progress
	unrecorded time.Time // since when its content cannot be recorded; zero if it is recorded
}

func newProgress() *progress { return &progress{known: make(map[string]*moving)} }

// of returns what is remembered about a SidecarSet. It forgets an earlier one of the same name.
func (p *progress) of(sidecarSet string, uid types.UID) *moving {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.known[sidecarSet]
	if m == nil || m.uid != uid {
		m = &moving{uid: uid}
		p.known[sidecarSet] = m
	}
	return m
}

func (p *progress) forget(sidecarSet string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, sidecarSet)
}
