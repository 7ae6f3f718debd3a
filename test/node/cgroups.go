package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const cgroups = "/sys/fs/cgroup"

// makeCgroups makes the cgroup of that name below the root of each hierarchy; the
// kubelet puts all Pods below it. With cgroup v2 there is one hierarchy.
func makeCgroups(name string) error {
	for _, root := range hierarchies() {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // cgroup v1: no process can join a cpuset while these are empty
			if err := copyFile(filepath.Join(root, file), filepath.Join(dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

// removeCgroups removes the cgroup of that name and all cgroups below it. Their processes must
// have ended.
func removeCgroups(name string) error {
	var all error
	for _, root := range hierarchies() {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(root, name), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) { // children first
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				all = errors.Join(all, err)
			}
		}
	}
	return all
}

// hierarchies are the directories in which cgroups are made.
func hierarchies() []string {
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		return []string{cgroups}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil
	}
	var dirs []string
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) > 2 && (fields[2] == "cgroup" || fields[2] == "cgroup2") {
			dirs = append(dirs, fields[1])
		}
	}
	return dirs
}
