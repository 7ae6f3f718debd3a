package plane

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"syscall"
)

// Info describes a stand that is ready. stand run prints it as one line of JSON.
type Info struct {
	Dir        string   `json:"dir"`
	Bin        string   `json:"bin"`
	Version    string   `json:"version"` // of Kubernetes
	Kubeconfig string   `json:"kubeconfig"`
	APIServers []string `json:"apiServers"` // URLs, in the order of the contexts admin, admin-2
	CAFile     string   `json:"caFile"`
	Pid        int      `json:"pid"`
}

// Answer is the answer to an order: what runs now, and why the order was not carried out.
type Answer struct {
	Error      string      `json:"error,omitempty"`
	Components []Component `json:"components"`
}

// Component is one process of the stand. A killed one has no pid.
type Component struct {
	Name  string `json:"name"`
	Pid   int    `json:"pid,omitempty"`
	Ports []int  `json:"ports"`
}

// obey carries out orders, one line each, and answers each with a line of JSON, until there are no more:
//
//	status             changes nothing
//	kill COMPONENT     ends a component as a crash would; the stand goes on without it
//	restart COMPONENT  starts it again with the same flags, ports and data, after stopping it if it runs
func (s *supervisor) obey(ctx context.Context, orders io.Reader, answers io.Writer) {
	for lines := bufio.NewScanner(orders); lines.Scan(); {
		answer := Answer{}
		if err := s.carryOut(ctx, lines.Text()); err != nil {
			answer.Error = err.Error()
		}
		answer.Components = s.components()
		_ = json.NewEncoder(answers).Encode(answer)
	}
}

func (s *supervisor) carryOut(ctx context.Context, line string) error {
	order, name, _ := strings.Cut(line, " ")
	ch := s.find(name)
	switch {
	case order == "status":
		return nil
	case ch == nil:
		return fmt.Errorf("no component %q", name)
	case order == "kill":
		ch.dismiss.Store(true)
		if err := ch.signal(syscall.SIGKILL); err != nil {
			return err
		}
		<-ch.done
		return nil
	case order == "restart":
		ch.stop(stopPatience)
		_, err := s.run(ctx, ch.component, ch.listen)
		return err
	}
	return fmt.Errorf("no order %q: there are status, kill and restart", order)
}
