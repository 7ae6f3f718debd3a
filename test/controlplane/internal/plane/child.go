package plane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// child is one running process of the stand.
type child struct {
	component
	listen  []int
	log     string
	cmd     *exec.Cmd
	done    chan struct{} // closed once the process is gone and reaped
	offset  int64         // where the output of this process begins in its log
	dismiss atomic.Bool   // the supervisor asked for its end, so the end is not a failure
}

// spawn starts the process with these ports. It appends to the log, so that the log of a
// component before a restart is kept.
func spawn(c component, bin, logs string, extra []string, ports []int) (*child, error) {
	ch := &child{component: c, listen: ports, log: filepath.Join(logs, c.name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(ch.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", c.name, err)
	}
	defer log.Close()
	if info, err := log.Stat(); err == nil {
		ch.offset = info.Size()
	}
	ch.cmd = exec.Command(filepath.Join(bin, c.program), append(c.flags(ports), extra...)...)
	ch.cmd.Stdout, ch.cmd.Stderr = log, log
	ch.cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, // nothing outlives the supervisor
		Setpgid:   true,            // the supervisor handles Ctrl-C in a terminal
	}
	onLastingThread(func() { err = ch.cmd.Start() })
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.name, err)
	}
	go func() {
		_ = ch.cmd.Wait() // how it ended is in ProcessState
		close(ch.done)
	}()
	return ch, nil
}

// rank orders the components by dependency: etcd first, then the API servers, and then the
// components that only use the API.
func (c *child) rank() int {
	switch c.program {
	case "etcd":
		return 0
	case "kube-apiserver":
		return 1
	default:
		return 2
	}
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// signal sends a signal to this process. If the process was reaped, it sends nothing, because
// another process may have the pid.
func (c *child) signal(sig syscall.Signal) error {
	err := c.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// stop asks the process to end, and kills it if it has not after the patience.
func (c *child) stop(patience time.Duration) {
	c.dismiss.Store(true)
	_ = c.signal(syscall.SIGTERM)
	_ = c.signal(syscall.SIGCONT) // a stopped process would not handle SIGTERM
	select {
	case <-c.done:
		return
	case <-time.After(patience):
	}
	_ = c.signal(syscall.SIGKILL)
	<-c.done
}

// failure describes how the process ended, with the last lines of its log.
func (c *child) failure() error {
	return fmt.Errorf("%s (pid %d) ended by itself: %s; the end of %s:\n%s",
		c.name, c.pid(), c.cmd.ProcessState, c.log, c.tail(20))
}

// tail returns the last lines that this process (not its predecessors) logged.
func (c *child) tail(lines int) string {
	text, err := os.ReadFile(c.log)
	if err != nil || int64(len(text)) < c.offset {
		return ""
	}
	all := strings.Split(strings.TrimRight(string(text[c.offset:]), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// lostPort reports whether the process ended because another process took a port
// between the choice and the bind.
func (c *child) lostPort() bool {
	return !c.alive() && strings.Contains(c.tail(200), "address already in use")
}
