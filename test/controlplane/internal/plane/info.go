package plane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Info describes a running stand. stand run prints it as one line of JSON, and stand.json
// contains it.
type Info struct {
	Dir        string   `json:"dir"`
	Bin        string   `json:"bin"`
	Version    string   `json:"version"` // of Kubernetes
	Kubeconfig string   `json:"kubeconfig"`
	APIServers []string `json:"apiServers"` // URLs, in the order of the contexts admin, admin-2
	CAFile     string   `json:"caFile"`
	// Pid and StartTime (field 22 of /proc/PID/stat) together identify the supervisor: a pid
	// may be used again, but not with the same start time.
	Pid        int         `json:"pid"`
	StartTime  string      `json:"startTime"`
	Components []Component `json:"components"`
}

// Component is one process of the stand. A stopped one has no pid.
type Component struct {
	Name  string `json:"name"`
	Pid   int    `json:"pid,omitempty"`
	Ports []int  `json:"ports"`
	Log   string `json:"log"`
}

// ErrNotRunning says that no supervisor holds the directory.
var ErrNotRunning = errors.New("no stand is running")

func infoFile(dir string) string { return filepath.Join(dir, "stand.json") }

// ReadInfo returns what runs in the directory. The error is ErrNotRunning if no stand runs, even
// if a supervisor was killed and left stand.json.
func ReadInfo(dir string) (*Info, error) {
	running, err := IsRunning(dir)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(infoFile(dir))
	if !running || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNotRunning, dir)
	}
	if err != nil {
		return nil, err
	}
	info := new(Info)
	if err := json.Unmarshal(text, info); err != nil {
		return nil, fmt.Errorf("reading %s: %w", infoFile(dir), err)
	}
	return info, nil
}

// write replaces stand.json in one step, so that no reader sees half of it.
func (i *Info) write() error {
	text, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	temp := infoFile(i.Dir) + ".new"
	if err := os.WriteFile(temp, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing what runs: %w", err)
	}
	return os.Rename(temp, infoFile(i.Dir))
}

// lockDir locks the directory for this process. The kernel releases the lock when the process
// ends, however it ends.
func lockDir(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "stand.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("a stand is running in %s already", dir)
	}
	return file, nil
}

// IsRunning reports whether a supervisor holds the directory.
func IsRunning(dir string) (bool, error) {
	file, err := os.OpenFile(filepath.Join(dir, "stand.lock"), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	// The lock is shared, so that two callers do not take each other for a supervisor.
	return syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil, nil
}

// startTime returns when the process started, in the kernel's ticks, or "" if
// there is no such process.
func startTime(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	return parseStartTime(string(text))
}

// parseStartTime returns field 22. The second field is the command's name in parentheses, and the
// name itself may contain spaces and parentheses.
func parseStartTime(stat string) string {
	_, rest, found := cutLast(stat, ")")
	fields := strings.Fields(rest)
	const index = 22 - 3 // rest begins with field 3
	if !found || len(fields) <= index {
		return ""
	}
	return fields[index]
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// IsOurs reports whether the process with the supervisor's pid is still the one that wrote this
// Info.
func (i *Info) IsOurs() bool {
	return i.StartTime != "" && startTime(i.Pid) == i.StartTime
}
