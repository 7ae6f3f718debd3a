package plane

import (
	"context"
	"fmt"
	"syscall"
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

// kill ends one component as a crash would, and returns once the process is gone.
func (s *supervisor) kill(name string) error {
	s.orders.Lock()
	defer s.orders.Unlock()
	ch, err := s.component(name)
	if err != nil {
		return err
	}
	ch.dismiss.Store(true)
	if err := ch.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-ch.done
	return nil
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
