package plane

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// component returns the component that a request from outside names.
func (s *supervisor) component(name string) (*child, error) {
	if _, err := s.snapshot(); err != nil {
		return nil, err
	}
	ch := s.find(name)
	if ch == nil {
		return nil, fmt.Errorf("no component %q", name)
	}
	return ch, nil
}

// kill sends a signal to one component. Unless the signal only stops or
// continues it, kill returns once the process is gone.
func (s *supervisor) kill(name string, sig syscall.Signal) error {
	s.orders.Lock()
	defer s.orders.Unlock()
	ch, err := s.component(name)
	if err != nil {
		return err
	}
	ends := sig != syscall.SIGSTOP && sig != syscall.SIGCONT
	if ends {
		ch.dismiss.Store(true)
	}
	if err := ch.signal(sig); err != nil || !ends {
		return err
	}
	select {
	case <-ch.done:
		return nil
	case <-time.After(stopPatience):
		return fmt.Errorf("%s (pid %d) is still there %s after %s", name, ch.pid(), stopPatience, sig)
	}
}

// restart stops one component if it runs, and starts it again with the same
// flags, ports and data. It returns once the component is healthy.
func (s *supervisor) restart(ctx context.Context, name string) error {
	s.orders.Lock()
	defer s.orders.Unlock()
	ch, err := s.component(name)
	if err != nil {
		return err
	}
	ch.stop(stopPatience)
	_, err = s.run(ctx, ch.component, ch.listen)
	return err
}
