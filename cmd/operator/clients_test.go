package operator

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

func TestClientCAsFollowTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := func() []byte {
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			template := &x509.Certificate{SerialNumber: big.NewInt(1), RawSubject: nil, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
			der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
			if err != nil {
				t.Fatal(err)
			}
			return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		}
		path := filepath.Join(t.TempDir(), "clients.pem")
		write := func(content []byte) {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := newClientCAs(path, logr.Discard()); err == nil {
			t.Error("a file that is missing is taken")
		}
		write([]byte("nothing"))
		if _, err := newClientCAs(path, logr.Discard()); err == nil {
			t.Error("a file without certificates is taken")
		}
		write(ca())
		cas, err := newClientCAs(path, logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		first := cas.Pool()
		write(bytes.Join([][]byte{ca(), ca()}, nil))
		if !cas.Pool().Equal(first) {
			t.Error("the file is read again at once")
		}
		<-time.After(clientsAge)
		second := cas.Pool()
		if second.Equal(first) {
			t.Error("a change is not followed")
		}
		write([]byte("nothing"))
		<-time.After(clientsAge)
		if !cas.Pool().Equal(second) {
			t.Error("a file that cannot be used replaces one that can")
		}
	})
}
