package ports

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// probeAge is how old an answer about readiness may be. A check verifies certificates, and any
// client that can connect can ask for it.
const probeAge = time.Second

// Probes answers a kubelet: /healthz says that the process lives, /readyz whether all
// checks succeed, and /readyz/NAME why one does not. The checks run when a client asks, and
// at most once a second. It is safe for concurrent use.
//
// A check looks at what the process knows, and waits for nothing. If it did work that takes
// long on a busy machine, such as a TLS handshake, then a process that is only slow would not
// be ready, and strangers could make every replica un-ready by keeping it busy.
type Probes struct {
	log logr.Logger

	mu      sync.Mutex
	checks  []*readinessCheck // by name
	checked time.Time         // when the checks ran last; zero if they never ran
}

type readinessCheck struct {
	name  string
	check healthz.Checker
	asked bool
	err   error
}

// NewProbes returns Probes without checks.
func NewProbes(log logr.Logger) *Probes { return &Probes{log: log} }

// AddReadiness adds a check, which must not block. Its answer is logged whenever it changes,
// because /readyz gives no reasons.
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refresh(r)
	var failed error
	var lines strings.Builder
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refresh(r)
	i := slices.IndexFunc(p.checks, func(c *readinessCheck) bool { return c.name == name })
	if i < 0 {
		http.NotFound(w, r)
		return
	}
	reason, failed := "", p.checks[i].err
	if failed != nil {
		reason = failed.Error() + "\n"
	}
	answerProbe(w, failed, reason)
}

// refresh runs all checks, unless they ran a moment ago, and logs what has changed. The caller
// holds mu.
func (p *Probes) refresh(r *http.Request) {
	if !p.checked.IsZero() && time.Since(p.checked) < probeAge {
		return
	}
	p.checked = time.Now()
	for _, c := range p.checks {
		before, first := c.reason(), !c.asked
		c.asked, c.err = true, c.check(r)
		if first || c.reason() != before {
			p.log.Info("Readiness changed", "check", c.name, "ready", c.err == nil, "reason", c.reason())
		}
	}
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
