package kubepod

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/api/apianswer"
	"github.com/meshcni/meshcni/internal/program/version"
)

// kubeconfig is the file, as k8s.io/client-go/tools/clientcmd/api/v1 has it.
type kubeconfig struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Current    string  `json:"current-context"`
	Contexts   []entry `json:"contexts"`
	Clusters   []entry `json:"clusters"`
	Users      []entry `json:"users"`
}

// entry has one of the three, by its list.
type entry struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
	Cluster cluster `json:"cluster"`
	User    user    `json:"user"`
}

type cluster struct {
	Server     string `json:"server"`
	ServerName string `json:"tls-server-name"`
	Insecure   bool   `json:"insecure-skip-tls-verify"`
	CAFile     string `json:"certificate-authority"`
	CA         []byte `json:"certificate-authority-data"`
	Proxy      string `json:"proxy-url"`
}

type user struct {
	CertFile     string              `json:"client-certificate"`
	Cert         []byte              `json:"client-certificate-data"`
	KeyFile      string              `json:"client-key"`
	Key          []byte              `json:"client-key-data"`
	Token        string              `json:"token"`
	TokenFile    string              `json:"tokenFile"`
	Username     string              `json:"username"`
	Password     string              `json:"password"`
	As           string              `json:"as"`
	AsUID        string              `json:"as-uid"`
	AsGroups     []string            `json:"as-groups"`
	AsExtra      map[string][]string `json:"as-user-extra"`
	AuthProvider any                 `json:"auth-provider"`
	Exec         any                 `json:"exec"`
}

// load follows clientcmd's rules for one explicit file, without the fall-backs (KUBECONFIG, ~/.kube, in-cluster): a plugin
// runs in the runtime's environment, not in a user's or a pod's.
func load(path string) (c cluster, u user, err error) {
	var k kubeconfig
	text, err := os.ReadFile(path)
	if err == nil {
		text, err = yaml.YAMLToJSON(text)
	}
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		return c, u, err
	}
	if cmp.Or(k.Kind, "Config") != "Config" || cmp.Or(k.APIVersion, "v1") != "v1" {
		return c, u, fmt.Errorf("it is a %s of %s, and no Config of v1", k.Kind, k.APIVersion)
	}
	if k.Current == "" {
		return c, u, errors.New("no configuration: it has no current-context")
	}
	x, err := find("context", k.Contexts, k.Current)
	if err != nil {
		return c, u, err
	}
	ofCluster, err1 := find("cluster", k.Clusters, x.Context.Cluster)
	ofUser, err2 := find("user", k.Users, x.Context.User)
	if err := errors.Join(err1, err2); err != nil {
		return c, u, err
	}
	c, u = ofCluster.Cluster, ofUser.User
	return c, u, errors.Join(c.complete(path), u.complete(path))
}

func find(kind string, list []entry, name string) (found entry, err error) {
	same := slices.DeleteFunc(slices.Clone(list), func(e entry) bool { return e.Name != name })
	if len(same) != 1 {
		return found, fmt.Errorf("it has %d of the specified %s: %s", len(same), kind, name)
	}
	return same[0], nil
}

// contents reads a value that is either in the kubeconfig or in a file, whose name is relative to the kubeconfig's.
func contents(path string, file *string, value *[]byte) (err error) {
	if *file == "" {
		return nil
	}
	if len(*value) > 0 {
		return fmt.Errorf("it has what is in %s itself too", *file)
	}
	if !filepath.IsAbs(*file) {
		*file = filepath.Join(filepath.Dir(path), *file)
	}
	*value, err = os.ReadFile(*file)
	return err
}

func (c *cluster) complete(path string) error {
	if c.Server == "" {
		return errors.New("no server found for the cluster")
	}
	if !strings.Contains(c.Server, "://") {
		c.Server = "https://" + c.Server
	}
	at, err := url.Parse(c.Server)
	if err != nil {
		return err
	}
	if at.Host == "" || at.Scheme != "https" && at.Scheme != "http" {
		return fmt.Errorf("the cluster's server %q is no address of HTTPS or HTTP", c.Server)
	}
	c.Server = strings.TrimRight(c.Server, "/")
	return contents(path, &c.CAFile, &c.CA)
}

func (u *user) complete(path string) error {
	if u.Exec != nil || u.AuthProvider != nil {
		return errHelper
	}
	token := []byte(nil)
	err := errors.Join(contents(path, &u.CertFile, &u.Cert), contents(path, &u.KeyFile, &u.Key), contents(path, &u.TokenFile, &token))
	switch {
	case err != nil:
		return err
	case (u.Token != "" || u.TokenFile != "") && u.Username != "":
		return errors.New("it has both a token and a user name, of which only one is allowed")
	case u.As == "" && (u.AsUID != "" || len(u.AsGroups) > 0 || len(u.AsExtra) > 0):
		return errors.New("it requests a UID, groups or extra fields of nobody: \"as\" is missing")
	}
	return nil
}

var errHelper = errors.New("it has an exec or auth-provider entry, and the plugin runs no credential helper; use a token, tokenFile or client certificate")

// header names the asker and the wanted encoding. A token's file is read each time, since it is rotated.
func (u user) header() http.Header {
	h := http.Header{"Accept": {accepted}, "User-Agent": {filepath.Base(os.Args[0]) + "/" + version.String()}}
	if u.TokenFile != "" {
		if text, err := os.ReadFile(u.TokenFile); err == nil {
			u.Token = strings.TrimSpace(string(text))
		}
	}
	switch {
	case u.Token != "":
		h.Set("Authorization", "Bearer "+u.Token)
	case u.Username != "":
		h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username+":"+u.Password)))
	}
	if u.As != "" {
		h.Set("Impersonate-User", u.As)
	}
	if u.AsUID != "" {
		h.Set("Impersonate-Uid", u.AsUID)
	}
	for _, group := range u.AsGroups {
		h.Add("Impersonate-Group", group)
	}
	for key, values := range u.AsExtra {
		for _, value := range values {
			h.Add("Impersonate-Extra-"+strings.ReplaceAll(url.QueryEscape(key), "+", "%20"), value)
		}
	}
	return h
}

// proxy is the kubeconfig's; nil: none. The environment is the runtime's, whose proxies are for its images.
func (c cluster) proxy() (*url.URL, error) {
	if c.Proxy == "" {
		return nil, nil
	}
	address, err := url.Parse(c.Proxy)
	if err != nil {
		return nil, fmt.Errorf("proxy-url: %w", err)
	}
	if !slices.Contains([]string{"http", "https", "socks5"}, address.Scheme) {
		return nil, fmt.Errorf("proxy-url %q is none of HTTP, HTTPS or SOCKS5", c.Proxy)
	}
	return address, nil
}

// transport speaks HTTP/1.1, which suits one small GET: HTTP/2 adds a settings exchange.
func transport(c cluster, u user, through *url.URL) (*http.Transport, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName, InsecureSkipVerify: c.Insecure, NextProtos: []string{"http/1.1"}} //nolint:gosec // as the kubeconfig says
	if len(c.CA) > 0 {
		if c.Insecure {
			return nil, errors.New("insecure-skip-tls-verify is not allowed with a certificate authority")
		}
		if secure.RootCAs = x509.NewCertPool(); !secure.RootCAs.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("its certificate authority has no certificate in PEM")
		}
	}
	if len(u.Cert) > 0 || len(u.Key) > 0 {
		pair, err := tls.X509KeyPair(u.Cert, u.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate and key: %w", err)
		}
		secure.Certificates = []tls.Certificate{pair}
	}
	proxy := apianswer.Direct
	if through != nil {
		proxy = http.ProxyURL(through)
	}
	return &http.Transport{
		Proxy: proxy,
		// The times are net/http's defaults, for a ctx without a deadline.
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		TLSClientConfig:     secure,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		// The server compresses only answers above 128 KiB, and a compressed one could grow past maxBody.
		DisableCompression: true,
		MaxIdleConns:       2,
		IdleConnTimeout:    90 * time.Second,
	}, nil
}
