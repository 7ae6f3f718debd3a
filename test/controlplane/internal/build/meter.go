package build

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// meter shows how far the go command is, and keeps its messages for an error. On a terminal it
// rewrites one line every second; elsewhere it prints a line now and then.
type meter struct {
	out      io.Writer
	terminal bool
	begin    time.Time
	done     chan struct{}
	stopped  sync.WaitGroup

	mu       sync.Mutex
	modules  int              // downloaded
	sizes    map[string]int64 // of each package that is to be compiled, in bytes
	total    int64            // the sum of sizes
	compiled int              // packages
	weight   int64            // their sizes
	since    time.Time        // when compiling began; zero before that
	other    []string
}

// newMeter returns a meter that reports to out until stop.
func newMeter(out io.Writer) *meter {
	m := &meter{out: out, begin: time.Now(), done: make(chan struct{})}
	interval := 10 * time.Second
	if file, ok := out.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			m.terminal, interval = true, time.Second
		}
	}
	m.stopped.Go(func() { m.report(interval) })
	return m
}

func (m *meter) report(interval time.Duration) {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			m.print()
		case <-m.done:
			return
		}
	}
}

func (m *meter) print() {
	if m.terminal {
		fmt.Fprintf(m.out, "\r\033[K%s", m.progress(time.Now()))
		return
	}
	fmt.Fprintln(m.out, m.progress(time.Now()))
}

// stop ends the reports and prints how long the go command took.
func (m *meter) stop() {
	close(m.done)
	m.stopped.Wait()
	m.mu.Lock()
	m.total = 0 // equal packages are not compiled again although what they import was
	m.mu.Unlock()
	m.print()
	if m.terminal {
		fmt.Fprintln(m.out)
	}
}

// compiles says which packages will be compiled, and how large they are. Compiling takes about
// as long as there are bytes.
func (m *meter) compiles(sizes map[string]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sizes, m.since = sizes, time.Now()
	for _, size := range sizes {
		m.total += size
	}
}

func (m *meter) progress(now time.Time) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	elapsed := now.Sub(m.begin).Round(time.Second)
	if m.since.IsZero() {
		return fmt.Sprintf("stand: %d modules downloaded, %s", m.modules, elapsed)
	}
	text := fmt.Sprintf("stand: %d of %d packages compiled, %s", m.compiled, len(m.sizes), elapsed)
	switch spent := now.Sub(m.since); {
	case m.weight >= m.total:
	case m.weight*20 < m.total: // too early to tell
	default:
		still := time.Duration(float64(spent) * float64(m.total-m.weight) / float64(m.weight))
		text += fmt.Sprintf(", about %s still", still.Round(10*time.Second))
	}
	return text
}

// line takes one line of the go command's output: an import path, a download, or a message that
// the user should read if the build fails.
func (m *meter) line(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case strings.HasPrefix(text, "go: downloading "):
		m.modules++
	case text != "" && !strings.ContainsAny(text, " \t#:"):
		m.compiled++
		m.weight += m.sizes[text]
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
