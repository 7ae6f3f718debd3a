package stand_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/stand"
)

// serveVariable is the environment variable that makes a test binary a small server; server
// sets it.
const serveVariable = "STAND_TEST_SERVE"

func init() {
	address := os.Getenv(serveVariable)
	if address == "" {
		return
	}
	fmt.Println("listening at", address)
	fmt.Println(http.ListenAndServe(address, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	os.Exit(3)
}

// server returns the command that runs this test binary as a server at the address.
func server(t *testing.T, address string) stand.Command {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return stand.Command{
		Name: "server", Path: self, Env: []string{serveVariable + "=" + address},
		Ready: stand.AnswersHTTP("http://" + address + "/"),
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	ports, err := stand.FreePorts(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

func TestProcessIsReadyWhenStartedAndGoneWhenKilled(t *testing.T) {
	address := freeAddress(t)
	p := stand.RunProcess(t, server(t, address))
	if err := stand.AnswersTCP(address)(t.Context()); err != nil {
		t.Errorf("it does not answer: %v", err)
	}
	if want := "listening at " + address; !strings.Contains(p.Log(), want) {
		t.Errorf("the log is %q, without %q", p.Log(), want)
	}
	p.Kill()
	if p.Running() || exists(p.Pid()) {
		t.Errorf("pid %d is there after Kill", p.Pid())
	}
	p.Stop() // does nothing
}

func TestProcessThatEndsEarlyIsReportedWithItsLog(t *testing.T) {
	address := freeAddress(t)
	stand.RunProcess(t, server(t, address))
	second := server(t, address)
	second.Ready = func(context.Context) error { return errors.New("not yet") }
	_, err := stand.StartProcess(t.Context(), second)
	if err == nil {
		t.Fatal("a second server at the same address started")
	}
	for _, want := range []string{"waiting for server", "exit status 3", "address already in use"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}
