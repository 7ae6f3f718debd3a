package build

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// interval is how often a long build reports its progress.
const interval = 10 * time.Second

// meter turns the output of go build -v into a line of progress now and then, and keeps the
// other output for the error message.
type meter struct {
	name    string
	out     io.Writer
	begin   time.Time
	done    chan struct{}
	stopped sync.WaitGroup

	mu       sync.Mutex
	packages int
	modules  int
	total    int
	other    []string
}

func newMeter(name string, out io.Writer) *meter {
	m := &meter{name: name, out: out, begin: time.Now(), done: make(chan struct{})}
	m.stopped.Go(m.report)
	return m
}

func (m *meter) report() {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			fmt.Fprintln(m.out, m.progress())
		case <-m.done:
			return
		}
	}
}

// stop ends the reports and prints how long the build took.
func (m *meter) stop() {
	close(m.done)
	m.stopped.Wait()
	fmt.Fprintln(m.out, m.progress())
}

func (m *meter) progress() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := fmt.Sprintf("stand: %s: %d", m.name, m.packages)
	if m.total > 0 {
		text += fmt.Sprintf(" of at most %d", m.total)
	}
	text += " packages compiled"
	if m.modules > 0 {
		text += fmt.Sprintf(", %d modules downloaded", m.modules)
	}
	return text + fmt.Sprintf(", %s", time.Since(m.begin).Round(time.Second))
}

// line takes one line of the build's output: an import path, a download, or a message that the
// user should read if the build fails.
func (m *meter) line(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case strings.HasPrefix(text, "go: downloading "):
		m.modules++
	case text != "" && !strings.ContainsAny(text, " \t#:"):
		m.packages++
	default:
		m.other = append(m.other, text)
	}
}

// messages returns the last lines that are neither progress nor downloads.
func (m *meter) messages() string {
	const most = 40 // lines; the compiler stops after ten errors per package
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.other[max(0, len(m.other)-most):], "\n")
}

// learnTotal finds out the number of packages while the build already runs. This takes a few
// seconds.
func (m *meter) learnTotal(count func() int) {
	total := count()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total = total
}
