"""Dragoman: a self-hosted agent hub, and the same agents as a library."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.accounts.context_sizes import Contexts as Contexts
    from dragoman.accounts.price_lookup import PriceOverride as PriceOverride
    from dragoman.agent.agent import Agent as Agent
    from dragoman.agent.attachments import file as file
    from dragoman.agent.attachments import image as image
    from dragoman.agent.attachments import tool_output as tool_output
    from dragoman.agent.attachments import user_message as user_message
    from dragoman.agent.context.policy import ContextPolicy as ContextPolicy
    from dragoman.agent.context.policy import Dropped as Dropped
    from dragoman.agent.context.summary import Summariser as Summariser
    from dragoman.agent.context.summary import Summary as Summary
    from dragoman.agent.context.truncation import estimate_tokens as estimate_tokens
    from dragoman.agent.context.truncation import is_approaching_limit as is_approaching_limit
    from dragoman.agent.context.truncation import truncate_messages as truncate_messages
    from dragoman.agent.hooks.events import Ask as Ask
    from dragoman.agent.hooks.events import Block as Block
    from dragoman.agent.hooks.events import Continue as Continue
    from dragoman.agent.hooks.events import Modify as Modify
    from dragoman.agent.hooks.events import PostModel as PostModel
    from dragoman.agent.hooks.events import PostToolUse as PostToolUse
    from dragoman.agent.hooks.events import PreModel as PreModel
    from dragoman.agent.hooks.events import PreToolUse as PreToolUse
    from dragoman.agent.hooks.events import RunEnd as RunEnd
    from dragoman.agent.hooks.events import UserPromptSubmit as UserPromptSubmit
    from dragoman.agent.hooks.guards.audit import audit_log as audit_log
    from dragoman.agent.hooks.guards.destructive_commands import confirm_destructive as confirm_destructive
    from dragoman.agent.hooks.guards.paths import path_guard as path_guard
    from dragoman.agent.hooks.guards.rate_limit import rate_limit as rate_limit
    from dragoman.agent.hooks.guards.redaction import redact as redact
    from dragoman.agent.hooks.guards.secrets import secret_scan as secret_scan
    from dragoman.agent.hooks.hooks import Hooks as Hooks
    from dragoman.agent.hooks.http import http_hook as http_hook
    from dragoman.agent.hooks.runner import Hook as Hook
    from dragoman.agent.hooks.runner import in_turn as in_turn
    from dragoman.agent.result import Aborted as Aborted
    from dragoman.agent.result import Crashed as Crashed
    from dragoman.agent.result import ErrorDetails as ErrorDetails
    from dragoman.agent.result import OutOfBudget as OutOfBudget
    from dragoman.agent.result import OutOfContext as OutOfContext
    from dragoman.agent.result import Repeated as Repeated
    from dragoman.agent.result import Result as Result
    from dragoman.agent.result import StepsExhausted as StepsExhausted
    from dragoman.agent.result import Success as Success
    from dragoman.agent.result import ToolCallSummary as ToolCallSummary
    from dragoman.agent.result import Unknown as Unknown
    from dragoman.agent.result import UsageSummary as UsageSummary
    from dragoman.agent.run import Run as Run
    from dragoman.agent.settings import RunLimits as RunLimits
    from dragoman.agent.stop_conditions import Condition as Condition
    from dragoman.agent.stop_conditions import SoFar as SoFar
    from dragoman.agent.stop_conditions import StepTaken as StepTaken
    from dragoman.agent.stop_conditions import all_of as all_of
    from dragoman.agent.stop_conditions import any_of as any_of
    from dragoman.agent.stop_conditions import cost as cost
    from dragoman.agent.stop_conditions import no_progress as no_progress
    from dragoman.agent.stop_conditions import seconds as seconds
    from dragoman.agent.stop_conditions import steps as steps
    from dragoman.agent.stop_conditions import text_matches as text_matches
    from dragoman.agent.stop_conditions import tokens as tokens
    from dragoman.agent.stop_conditions import tool_called as tool_called
    from dragoman.agent.structured_output import Output as Output
    from dragoman.agent.structured_output import Problem as Problem
    from dragoman.agent.tools.toolbox import Overhead as Overhead
    from dragoman.agent.tools.toolbox import ToolCost as ToolCost
    from dragoman.agent.turn_spec import StepChange as StepChange
    from dragoman.agent.turn_spec import StepContext as StepContext
    from dragoman.agent.ui_stream import UIStream as UIStream
    from dragoman.agent.ui_stream import ui_stream as ui_stream
    from dragoman.errors import ApprovalNeeded as ApprovalNeeded
    from dragoman.errors import BadRequest as BadRequest
    from dragoman.errors import BudgetExhausted as BudgetExhausted
    from dragoman.errors import CallDenied as CallDenied
    from dragoman.errors import CallError as CallError
    from dragoman.errors import CallTimeout as CallTimeout
    from dragoman.errors import ConfigError as ConfigError
    from dragoman.errors import Conflict as Conflict
    from dragoman.errors import DragomanError as DragomanError
    from dragoman.errors import Forbidden as Forbidden
    from dragoman.errors import InvalidInput as InvalidInput
    from dragoman.errors import NotFound as NotFound
    from dragoman.errors import ProviderError as ProviderError
    from dragoman.errors import RateLimited as RateLimited
    from dragoman.errors import TooLarge as TooLarge
    from dragoman.errors import Unavailable as Unavailable
    from dragoman.events import Abort as Abort
    from dragoman.events import Data as Data
    from dragoman.events import ErrorEvent as ErrorEvent
    from dragoman.events import Event as Event
    from dragoman.events import File as File
    from dragoman.events import Finish as Finish
    from dragoman.events import FinishReason as FinishReason
    from dragoman.events import FinishStep as FinishStep
    from dragoman.events import MessageMetadata as MessageMetadata
    from dragoman.events import ReasoningDelta as ReasoningDelta
    from dragoman.events import ReasoningEnd as ReasoningEnd
    from dragoman.events import ReasoningStart as ReasoningStart
    from dragoman.events import ResetStep as ResetStep
    from dragoman.events import SourceDocument as SourceDocument
    from dragoman.events import SourceUrl as SourceUrl
    from dragoman.events import Start as Start
    from dragoman.events import StartStep as StartStep
    from dragoman.events import TextDelta as TextDelta
    from dragoman.events import TextEnd as TextEnd
    from dragoman.events import TextStart as TextStart
    from dragoman.events import ToolApprovalRequest as ToolApprovalRequest
    from dragoman.events import ToolApprovalResponse as ToolApprovalResponse
    from dragoman.events import ToolInputAvailable as ToolInputAvailable
    from dragoman.events import ToolInputDelta as ToolInputDelta
    from dragoman.events import ToolInputError as ToolInputError
    from dragoman.events import ToolInputStart as ToolInputStart
    from dragoman.events import ToolOutputAvailable as ToolOutputAvailable
    from dragoman.events import ToolOutputDenied as ToolOutputDenied
    from dragoman.events import ToolOutputError as ToolOutputError
    from dragoman.events import Usage as Usage
    from dragoman.http.connection import Timeouts as Timeouts
    from dragoman.http.webhook import Webhook as Webhook
    from dragoman.http.webhook import verify_webhook as verify_webhook
    from dragoman.identity import Identity as Identity
    from dragoman.mcp.server_spec import ServerSpec as ServerSpec
    from dragoman.messages import Approval as Approval
    from dragoman.messages import DataPart as DataPart
    from dragoman.messages import FilePart as FilePart
    from dragoman.messages import Message as Message
    from dragoman.messages import Part as Part
    from dragoman.messages import ReasoningPart as ReasoningPart
    from dragoman.messages import SourceDocumentPart as SourceDocumentPart
    from dragoman.messages import SourceUrlPart as SourceUrlPart
    from dragoman.messages import StepStartPart as StepStartPart
    from dragoman.messages import TextPart as TextPart
    from dragoman.messages import ToolPart as ToolPart
    from dragoman.model_request import ModelRequest as ModelRequest
    from dragoman.model_request import Tool as Tool
    from dragoman.operations.budget import Budget as Budget
    from dragoman.operations.context import Context as Context
    from dragoman.operations.definitions.decorator import operation as operation
    from dragoman.operations.definitions.tool_builder import tool as tool
    from dragoman.operations.operation import Operation as Operation
    from dragoman.operations.permission.policy import Policy as Policy
    from dragoman.operations.permission.policy import Rule as Rule
    from dragoman.providers.anthropic import AnthropicProvider as AnthropicProvider
    from dragoman.providers.claude_code.provider import ClaudeCodeProvider as ClaudeCodeProvider
    from dragoman.providers.error_classification import classify_error as classify_error
    from dragoman.providers.error_classification import is_transient_error as is_transient_error
    from dragoman.providers.error_classification import read_error as read_error
    from dragoman.providers.error_classification import suggested_retry_delay as suggested_retry_delay
    from dragoman.providers.model import Model as Model
    from dragoman.providers.ollama import OllamaProvider as OllamaProvider
    from dragoman.providers.openai import OpenAIProvider as OpenAIProvider
    from dragoman.providers.recording import record as record
    from dragoman.providers.recording import replay as replay
    from dragoman.providers.resolve import resolve as resolve
    from dragoman.providers.retry import RetryPolicy as RetryPolicy
    from dragoman.providers.scripted import Failure as Failure
    from dragoman.providers.scripted import ScriptedCall as ScriptedCall
    from dragoman.providers.scripted import ScriptedModel as ScriptedModel
    from dragoman.providers.scripted import Step as Step
    from dragoman.tools.question import question as question
else:  # at run time a name is imported when it is first used: most commands need few of them
    from dragoman.lazy_imports import lazy_names
    from dragoman.public_names import MODULES

    __getattr__ = lazy_names(__name__, MODULES)

__all__ = [
    "Abort",
    "Aborted",
    "Agent",
    "AnthropicProvider",
    "Approval",
    "ApprovalNeeded",
    "Ask",
    "BadRequest",
    "Block",
    "Budget",
    "BudgetExhausted",
    "CallDenied",
    "CallError",
    "CallTimeout",
    "ClaudeCodeProvider",
    "Condition",
    "ConfigError",
    "Conflict",
    "Context",
    "ContextPolicy",
    "Contexts",
    "Continue",
    "Crashed",
    "Data",
    "DataPart",
    "DragomanError",
    "Dropped",
    "ErrorDetails",
    "ErrorEvent",
    "Event",
    "Failure",
    "File",
    "FilePart",
    "Finish",
    "FinishReason",
    "FinishStep",
    "Forbidden",
    "Hook",
    "Hooks",
    "Identity",
    "InvalidInput",
    "Message",
    "MessageMetadata",
    "Model",
    "ModelRequest",
    "Modify",
    "NotFound",
    "OllamaProvider",
    "OpenAIProvider",
    "Operation",
    "OutOfBudget",
    "OutOfContext",
    "Output",
    "Overhead",
    "Part",
    "Policy",
    "PostModel",
    "PostToolUse",
    "PreModel",
    "PreToolUse",
    "PriceOverride",
    "Problem",
    "ProviderError",
    "RateLimited",
    "ReasoningDelta",
    "ReasoningEnd",
    "ReasoningPart",
    "ReasoningStart",
    "Repeated",
    "ResetStep",
    "Result",
    "RetryPolicy",
    "Rule",
    "Run",
    "RunEnd",
    "RunLimits",
    "ScriptedCall",
    "ScriptedModel",
    "ServerSpec",
    "SoFar",
    "SourceDocument",
    "SourceDocumentPart",
    "SourceUrl",
    "SourceUrlPart",
    "Start",
    "StartStep",
    "Step",
    "StepChange",
    "StepContext",
    "StepStartPart",
    "StepTaken",
    "StepsExhausted",
    "Success",
    "Summariser",
    "Summary",
    "TextDelta",
    "TextEnd",
    "TextPart",
    "TextStart",
    "Timeouts",
    "TooLarge",
    "Tool",
    "ToolApprovalRequest",
    "ToolApprovalResponse",
    "ToolCallSummary",
    "ToolCost",
    "ToolInputAvailable",
    "ToolInputDelta",
    "ToolInputError",
    "ToolInputStart",
    "ToolOutputAvailable",
    "ToolOutputDenied",
    "ToolOutputError",
    "ToolPart",
    "UIStream",
    "Unavailable",
    "Unknown",
    "Usage",
    "UsageSummary",
    "UserPromptSubmit",
    "Webhook",
    "all_of",
    "any_of",
    "audit_log",
    "classify_error",
    "confirm_destructive",
    "cost",
    "estimate_tokens",
    "file",
    "http_hook",
    "image",
    "in_turn",
    "is_approaching_limit",
    "is_transient_error",
    "no_progress",
    "operation",
    "path_guard",
    "question",
    "rate_limit",
    "read_error",
    "record",
    "redact",
    "replay",
    "resolve",
    "seconds",
    "secret_scan",
    "steps",
    "suggested_retry_delay",
    "text_matches",
    "tokens",
    "tool",
    "tool_called",
    "tool_output",
    "truncate_messages",
    "ui_stream",
    "user_message",
    "verify_webhook",
]
