package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// recorder is the name under which a runtime calls the tool to have its calls recorded.
const recorder = "recorder"

// call is what a runtime calls a network's plugins with.
type call struct {
	Command, ContainerID, NetNS, IfName, Args string
	// Config is the plugin's configuration as it came.
	Config json.RawMessage
}

// record is a chained CNI plugin that does nothing. It appends each call but VERSION to the file that its configuration
// names, and fails one if there is a file in the same directory that has the command's name.
func record(command string, stdin io.Reader) error {
	text, err := io.ReadAll(stdin)
	if err != nil {
		return err
	}
	var conf struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
		Calls      string          `json:"calls"`
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if command == "VERSION" {
		_, err := fmt.Printf(versions, conf.CNIVersion)
		return err
	}
	line, err := json.Marshal(call{
		Command: command, ContainerID: os.Getenv("CNI_CONTAINERID"), NetNS: os.Getenv("CNI_NETNS"), IfName: os.Getenv("CNI_IFNAME"),
		Args: os.Getenv("CNI_ARGS"), Config: text,
	})
	if err != nil {
		return err
	}
	if err := appendTo(conf.Calls, append(line, '\n')); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(conf.Calls), command)); err == nil {
		fmt.Printf(`{"cniVersion": %q, "code": 100, "msg": "%s fails, as the test wants"}`, conf.CNIVersion, command)
		os.Exit(1)
	}
	if command == "ADD" {
		_, err = os.Stdout.Write(conf.PrevResult)
	}
	return err
}

func appendTo(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}
