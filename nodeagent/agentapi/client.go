package agentapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshcni/meshcni/status"
)

// MaxAnswer bounds what a client reads of an answer, in bytes: a node with all pods that a kubelet takes has a tenth of it.
const MaxAnswer = 4 << 20

// ErrBroken says that the answer did not come, or not all of it, and ErrNoAPI that an agent is too old, or has nothing at this address.
var (
	ErrBroken = errors.New("read the answer")
	ErrNoAPI  = errors.New("the agent does not answer such questions: it is of an older version, or --health-address is empty")
)

// Client asks an agent on the loopback interface, on its node or through a tunnel that ends there.
type Client struct {
	// URL is the agent's, such as http://127.0.0.1:8000.
	URL string
	// HTTP makes the requests. Nil means http.DefaultClient.
	HTTP *http.Client
	// Socket is the path of the socket that HTTP connects to, of a client of [Local]. It is for who serves there.
	Socket string
}

// Node asks for the state of the node.
func (c Client) Node(ctx context.Context) (n Node, err error) { return n, c.get(ctx, NodePath, &n) }

// Pod asks for all that the node has of a pod, by its UID as the runtime has it.
func (c Client) Pod(ctx context.Context, uid string) (p Pod, err error) {
	return p, c.get(ctx, PodPath+uid, &p)
}

// Local returns the client of the agent whose run directory that is, at its socket, which is root's. [Client.Watch] needs it.
func Local(runDir string) Client {
	path := filepath.Join(runDir, "api.sock")
	return Client{URL: "http://agent", Socket: path, HTTP: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}}
}

// Watch follows the states of the node's pods, as Agent.Watch does, until the context or the loop ends, or an error, after which there is nothing
// more: errors.Is(err, ErrBroken) means that the agent has ended, or has told nothing for longer than it may. Call Watch again then.
func (c Client) Watch(ctx context.Context) iter.Seq2[[]status.Pod, error] {
	return func(yield func([]status.Pod, error) bool) {
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		silent := time.AfterFunc(silence, func() { stop(fmt.Errorf("it has said nothing for %s", silence)) })
		defer silent.Stop()
		body, err := c.open(ctx, podsPath)
		if err != nil {
			yield(nil, err)
			return
		}
		defer func() { _ = body.Close() }()
		lines := json.NewDecoder(body)
		for {
			var pods []status.Pod
			if err := lines.Decode(&pods); err != nil {
				if cause := context.Cause(ctx); cause != nil {
					err = cause
				}
				yield(nil, fmt.Errorf("%w: %w", ErrBroken, err))
				return
			}
			silent.Reset(silence)
			if !yield(pods, nil) {
				return
			}
		}
	}
}

// silence is longer than an agent is ever silent.
const silence = 90 * time.Second

// open asks, and returns the body of an answer that is none of a refusal.
func (c Client) open(ctx context.Context, path string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := cmp.Or(c.HTTP, http.DefaultClient).Do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, Read(response, nil)
	}
	return response.Body, nil
}

func (c Client) get(ctx context.Context, path string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, nil)
	if err != nil {
		return err
	}
	response, err := cmp.Or(c.HTTP, http.DefaultClient).Do(r)
	if err != nil {
		return err
	}
	return Read(response, into)
}

// Read decodes an answer, within MaxAnswer, and closes its body.
func Read(response *http.Response, into any) error {
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrBroken, err)
	case response.StatusCode == http.StatusNotFound:
		return ErrNoAPI
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("it answered %s: %s", response.Status, strings.TrimSpace(string(text[:min(len(text), 500)])))
	case len(text) > MaxAnswer:
		return fmt.Errorf("the answer is longer than %d MiB", MaxAnswer>>20)
	}
	return json.Unmarshal(text, into)
}
