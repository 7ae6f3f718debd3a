package ports

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

const (
	// probeAge is how old an answer about readiness may be. A check may cost a TLS
	// handshake, and any client that can connect can ask for it.
	probeAge = time.Second
	// checkTimeout bounds the checks together.
	checkTimeout = 4 * time.Second
	// probePatience is how long a probe waits for checks; a kubelet waits for a second by
	// default. On a busy machine a handshake takes longer. Then the probe gets the answer
	// from before, if that is not older than oldestAnswer.
	probePatience = 500 * time.Millisecond
	oldestAnswer  = 15 * time.Second
)

// Probes answers a kubelet: /healthz says that the process lives, /readyz whether all
// checks succeed, and /readyz/NAME why one does not. Checks run one after the other,
// when a client asks, and at most once a second. It is safe for concurrent use.
type Probes struct {
	log logr.Logger

	mu      sync.Mutex
	checks  []*readinessCheck // by name
	checked time.Time         // when the checks ended last; zero if they have never ended
	running chan struct{}     // closed when the running checks end; nil if none are running
}

type readinessCheck struct {
	name  string
	check healthz.Checker
	asked bool
	err   error
}

// NewProbes returns Probes without checks.
func NewProbes(log logr.Logger) *Probes { return &Probes{log: log} }

// AddReadiness adds a check. Its answer is logged whenever it changes, because /readyz
// gives no reasons.
func (p *Probes) AddReadiness(name string, check healthz.Checker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checks = append(p.checks, &readinessCheck{name: name, check: check})
	slices.SortFunc(p.checks, func(a, b *readinessCheck) int { return strings.Compare(a.name, b.name) })
	p.checked = time.Time{}
}

// ServeHTTP answers a probe.
func (p *Probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "use GET or HEAD", http.StatusMethodNotAllowed)
		return
	}
	switch name, one := strings.CutPrefix(r.URL.Path, "/readyz/"); {
	case r.URL.Path == "/healthz":
		answerProbe(w, nil, "")
	case r.URL.Path == "/readyz":
		_, verbose := r.URL.Query()["verbose"]
		p.answerAll(w, r, verbose)
	case one:
		p.answerOne(w, r, name)
	default:
		http.NotFound(w, r)
	}
}

func (p *Probes) answerAll(w http.ResponseWriter, r *http.Request, verbose bool) {
	hung := p.refresh(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	failed := hung
	var lines strings.Builder
	if hung != nil {
		fmt.Fprintf(&lines, "[-]%v\n", hung)
	}
	for _, c := range p.checks {
		if c.err == nil {
			fmt.Fprintf(&lines, "[+]%s ok\n", c.name)
			continue
		}
		failed = c.err
		fmt.Fprintf(&lines, "[-]%s failed: see /readyz/%s\n", c.name, c.name)
	}
	if failed == nil && !verbose {
		lines.Reset()
	}
	answerProbe(w, failed, lines.String())
}

func (p *Probes) answerOne(w http.ResponseWriter, r *http.Request, name string) {
	failed := p.refresh(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.checks, func(c *readinessCheck) bool { return c.name == name })
	if i < 0 {
		http.NotFound(w, r)
		return
	}
	reason := ""
	if failed = cmp.Or(failed, p.checks[i].err); failed != nil {
		reason = failed.Error() + "\n"
	}
	answerProbe(w, failed, reason)
}

// refresh runs the checks, unless they ran a moment ago, and waits for probePatience.
// It returns an error if the newest answer is too old.
func (p *Probes) refresh(r *http.Request) error {
	p.mu.Lock()
	age, never := time.Since(p.checked), p.checked.IsZero()
	if !never && age < probeAge {
		p.mu.Unlock()
		return nil
	}
	if p.running == nil {
		p.running = make(chan struct{})
		// The checks are for all clients, so they do not end when this client goes away.
		go p.run(r.WithContext(context.WithoutCancel(r.Context())))
	}
	ended := p.running
	p.mu.Unlock()

	patience := time.NewTimer(probePatience)
	if never {
		patience.Reset(checkTimeout)
	}
	defer patience.Stop()
	select {
	case <-ended:
		return nil
	case <-patience.C:
	case <-r.Context().Done():
	}
	switch {
	case never:
		return errors.New("no check has ended yet")
	case age > oldestAnswer:
		return fmt.Errorf("no check has ended for %v", oldestAnswer)
	}
	return nil
}

// run runs all checks, and keeps their answers.
func (p *Probes) run(r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	p.mu.Lock()
	checks := slices.Clone(p.checks)
	p.mu.Unlock()
	answers := make([]error, len(checks))
	for i, c := range checks {
		answers[i] = c.check(r.WithContext(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range checks {
		before, first := c.reason(), !c.asked
		c.asked, c.err = true, answers[i]
		if first || c.reason() != before {
			p.log.Info("Readiness changed", "check", c.name, "ready", c.err == nil, "reason", c.reason())
		}
	}
	p.checked = time.Now()
	close(p.running)
	p.running = nil
}

func (c *readinessCheck) reason() string {
	if c.err == nil {
		return ""
	}
	return c.err.Error()
}

func answerProbe(w http.ResponseWriter, failed error, lines string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if failed != nil {
		w.WriteHeader(http.StatusInternalServerError)
	}
	if lines == "" {
		lines = "ok"
	}
	_, _ = w.Write([]byte(lines)) // an error means that the client has gone
}
