package stand

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/await"
)

// Command says what process to run.
type Command struct {
	Name string   // in messages, and of the log file
	Path string   // the program
	Args []string // without the program's name
	Env  []string // in addition to this process's environment
	// Ready is called again and again until it returns nil, for await.Patience at most. If
	// Ready is nil, the process is ready once it is started.
	Ready func(context.Context) error
	// LogDir is where the log file is made; empty means the temporary directory.
	LogDir string
}

// Process is a running Command. Its methods may be called concurrently.
type Process struct {
	Name    string
	LogFile string // what it writes to standard output and error

	cmd  *exec.Cmd
	done chan struct{}
}

// RunProcess starts the command and returns when it is ready; the test fails if
// it is not. When the test ends the process is stopped, and the end of its log
// is shown if the test failed.
func RunProcess(t testing.TB, c Command) *Process {
	t.Helper()
	if c.LogDir == "" {
		c.LogDir = t.TempDir()
	}
	p, err := StartProcess(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", p.Name, p.Tail(50))
		}
	})
	return p
}

// StartProcess starts the command and returns when it is ready. The caller must Stop it. If
// this process ends before that, the kernel kills the command.
func StartProcess(ctx context.Context, c Command) (*Process, error) {
	log, err := os.CreateTemp(c.LogDir, filepath.Base(c.Name)+"-*.log")
	if err != nil {
		return nil, fmt.Errorf("making a log for %s: %w", c.Name, err)
	}
	defer func() { _ = log.Close() }() // the process has its own
	p := &Process{Name: c.Name, LogFile: log.Name(), done: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), c.Path, c.Args...) // ctx bounds the start only
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	onLastingThread(func() { err = p.cmd.Start() })
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	if c.Ready == nil {
		return p, nil
	}
	if err := p.Await(ctx, c.Ready); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// Await calls ready again and again until it returns nil, for await.Patience at most. It fails
// if the process ends before. The error has the end of the log.
func (p *Process) Await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	var ended error
	err := await.Until(ctx, func(ctx context.Context) error {
		if !p.Running() {
			ended = fmt.Errorf("it ended: %s", p.cmd.ProcessState)
			return nil
		}
		return ready(ctx)
	})
	if err = errors.Join(ended, err); err != nil {
		return fmt.Errorf("waiting for %s: %w; the end of its log:\n%s", p.Name, err, p.Tail(50))
	}
	return nil
}

// Pid returns the process id, also after the process ended.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Running reports whether the process has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ExitCode waits for the end and returns the exit code, or -1 if a signal ended
// the process.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal. It returns no error if the process has ended.
func (p *Process) Signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Kill ends the process as a crash would and returns when it is gone.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
}

// Stop asks the process to end and returns when it is gone; after a minute, it is killed.
// Replicas end within 6 s. Stopping it again does nothing.
func (p *Process) Stop() {
	_ = p.Signal(syscall.SIGTERM)
	_ = p.Signal(syscall.SIGCONT) // a stopped process would not handle SIGTERM
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		p.Kill()
	}
}

// Log returns what the process has written so far.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Tail returns the last lines of Log.
func (p *Process) Tail(lines int) string {
	all := strings.Split(strings.TrimRight(p.Log(), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// AnswersHTTP is a Command's Ready: a GET of the URL returns 200. Certificates
// are not checked.
func AnswersHTTP(url string) func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // only whether the process answers matters
		DisableKeepAlives: true,
	}}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
			return fmt.Errorf("GET %s: %s: %s", url, resp.Status, body)
		}
		return nil
	}
}

var lastingThread = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// onLastingThread runs f on a thread that lives as long as this process: the
// kernel sends Pdeathsig when the thread that made the child ends.
func onLastingThread(f func()) {
	done := make(chan struct{})
	lastingThread() <- func() { defer close(done); f() }
	<-done
}
