package plane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Down stops the stand in dir and returns when it is gone. If no stand runs, Down succeeds. It
// sends signals only to the process that wrote stand.json.
func Down(ctx context.Context, dir string) error {
	info, err := ReadInfo(dir)
	if errors.Is(err, ErrNotRunning) {
		running, err := IsRunning(dir)
		if err != nil || !running {
			return err
		}
		return fmt.Errorf("the stand in %s is starting or stopping", dir)
	}
	if err != nil {
		return err
	}
	if !info.IsOurs() {
		return fmt.Errorf("pid %d is not the stand that was started in %s", info.Pid, dir)
	}
	if err := syscall.Kill(info.Pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping the stand in %s (pid %d): %w", dir, info.Pid, err)
	}
	const patience = 4 * stopPatience // the stand stops three ranks one after the other
	polite, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if waitGone(polite, dir) == nil {
		return nil
	}
	if info.IsOurs() {
		_ = syscall.Kill(info.Pid, syscall.SIGKILL) // the components end with it
	}
	return waitGone(ctx, dir)
}

func waitGone(ctx context.Context, dir string) error {
	return poll(ctx, func(context.Context) error {
		running, err := IsRunning(dir)
		if err == nil && running {
			err = fmt.Errorf("the stand in %s still runs", dir)
		}
		return err
	})
}

// AwaitReady waits until a stand that another process started in dir is ready.
func AwaitReady(ctx context.Context, dir string) (info *Info, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*startPatience)
	defer cancel()
	err = poll(ctx, func(context.Context) error {
		info, err = ReadInfo(dir)
		return err
	})
	return info, err
}

// Delete removes the data directory of a stand that does not run.
func Delete(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "stand.lock")); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("%s is not a stand's data directory", dir)
	}
	return os.RemoveAll(dir)
}
