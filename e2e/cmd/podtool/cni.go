package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// foreignRules empty the chains that istio-cni and our Istio dialect have in common.
const foreignRules = "*nat\n:ISTIO_OUTPUT - [0:0]\n-A ISTIO_OUTPUT -j RETURN\nCOMMIT\n"

// versions is a plugin's answer to VERSION; the version that was asked for fills it in.
const versions = `{"cniVersion": %q, "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]}`

// cni is the stand-in for another mesh's CNI plugin: a chained one that replaces the chains of ours by its own.
func cni(command string, stdin io.Reader) error {
	var conf struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.NewDecoder(stdin).Decode(&conf); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	switch command {
	case "VERSION":
		fmt.Printf(versions, conf.CNIVersion)
	case "ADD":
		restore := exec.Command("nsenter", "--net="+os.Getenv("CNI_NETNS"), "iptables-restore", "--noflush", "--wait")
		restore.Stdin = bytes.NewReader([]byte(foreignRules))
		if out, err := restore.CombinedOutput(); err != nil {
			return fmt.Errorf("iptables-restore: %w: %s", err, out)
		}
		_, err := os.Stdout.Write(conf.PrevResult)
		return err
	}
	return nil
}
