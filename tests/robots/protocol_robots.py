"""The robots of docs/protocol.md, section "Robots", written out by hand next to the original words, to be compared with
the policy files."""

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retake.clock import FakeClock
from retake.errors import RobotError
from retake.retrying.guard import Call
from retake.retrying.state_store import StateStore
from retake.robots.action_sink import ActionSink, RecordingSink
from retake.robots.execution import Ports
from retake.robots.policies import RobotPolicy, load_policies
from retake.robots.robot import Robot

POLICIES = load_policies()

Action = dict[str, Any]


class RobotProtocol(NamedTuple):
    """The protocol of one robot."""

    name: str
    errors: Mapping[str, str]  # code: class
    waits_s: tuple[float, ...]  # before each repeat
    jitter_percent: float
    repeated: set[str]  # codes
    follow_ups: Mapping[str, list[Action]]  # by code, after the last failure
    endless: bool = False


A_PERSON: list[Action] = [  # «create_support_ticket(), notify_human_operator()»
    {"action": "TICKET", "what": "find out why this fails, and fix it"},
    {"action": "TELL", "recipient": "operator", "level": "error"},
]
THE_MANAGEMENT: list[Action] = [  # «trigger_incident_response(), switch_to_backup_system(), escalate_to_management()»
    {"action": "INCIDENT"},
    {"action": "BACKUP_SYSTEM"},
    {"action": "ESCALATE", "recipient": "management", "what": "see to the incident", "delay_seconds": 0},
]


def after_each(codes: Mapping[str, str], *actions: Action) -> dict[str, list[Action]]:
    return {code: [*actions] for code in codes}


ONE = {"ERR_TEMPORARY_APPIUS_UNAVAILABLE": "A", "ERR_BUSINESS_INVALID_EVENT": "B", "ERR_CRITICAL_PARSE_ERROR": "C"}
TWO = {"ERR_TEMPORARY_API_TIMEOUT": "A", "ERR_BUSINESS_TECH_DOC_NOT_FOUND": "B", "ERR_CRITICAL_DATA_CORRUPTION": "C"}
THREE = {
    "ERR_TEMPORARY_1C_UNAVAILABLE": "A",
    "ERR_BUSINESS_MISSING_NOMENCLATURE_TYPE": "B",
    "ERR_BUSINESS_MISSING_CHARACTERISTIC": "B",
    "ERR_CRITICAL_CONFIG_MISMATCH": "C",
}
FOUR = {
    "ERR_TEMPORARY_DB_CONFLICT": "A",
    "ERR_BUSINESS_DUPLICATE_ITEM": "B",
    "ERR_BUSINESS_VALIDATION_FAILED": "B",
    "ERR_CRITICAL_INTEGRATION_ERROR": "C",
}
FIVE = {
    "ERR_BUSINESS_INVALID_SCRAP_TYPE": "B",
    "ERR_TEMPORARY_BATCH_FAILURE": "A",
    "ERR_CRITICAL_MEMORY_OVERFLOW": "C",
}
SIX = {
    "ERR_TEMPORARY_CHARACTERISTIC_LOCK": "A",
    "ERR_BUSINESS_INVALID_GRID_VALUE": "B",
    "ERR_CRITICAL_TEMPLATE_MISSING": "C",
}
SEVEN = {
    "ERR_BUSINESS_STEP_VIOLATION": "B",
    "ERR_BUSINESS_OUT_OF_RANGE": "B",
    "ERR_TEMPORARY_CALCULATION_TIMEOUT": "A",
}
EIGHT = {
    "ERR_TEMPORARY_REFERENCE_INTEGRITY": "A",
    "ERR_BUSINESS_CIRCULAR_REFERENCE": "B",
    "ERR_CRITICAL_VERSION_MISMATCH": "C",
}
NINE = {
    "ERR_TEMPORARY_METRICS_STORAGE_UNAVAILABLE": "A",
    "ERR_BUSINESS_KPI_CALCULATION_ERROR": "B",
    "ERR_CRITICAL_DATA_LOSS": "C",
}

JOURNAL_OF_FIVE: Action = {"action": "JOURNAL", "what": "successes and failures"}

PROTOCOL: dict[str, RobotProtocol] = {
    "NR.NSI.1": RobotProtocol(
        "detect_new_scrap_need",
        ONE,
        waits_s=(2, 8, 32),  # «[2s, 8s, 32s] ± 25% jitter», «Максимум попыток: 3»
        jitter_percent=25,
        repeated={"ERR_TEMPORARY_APPIUS_UNAVAILABLE"},  # «Только для ошибок класса A»
        follow_ups=after_each(
            ONE,
            {"action": "DEAD_LETTER"},  # «запись в Dead Letter Queue (DLQ)»
            {"action": "NOTIFY", "channel": "pagerduty", "level": "critical"},  # «PagerDuty (Critical)»
            {"action": "NOTIFY", "channel": "email", "level": "warning"},  # «email (Warning)»
            {  # «Время эскалации: 5 минут»
                "action": "ESCALATE",
                "recipient": "human",
                "what": "see to the dead letter",
                "delay_seconds": 300,
            },
        ),
    ),
    "NR.NSI.2": RobotProtocol(
        "fetch_appius_scrap_payload",
        TWO,
        waits_s=(1, 1, 2, 3, 5),  # «[1s, 1s, 2s, 3s, 5s] ± 15% jitter», «Максимум попыток: 5»
        jitter_percent=15,
        repeated={"ERR_TEMPORARY_API_TIMEOUT"},  # «Ошибки классов A и некоторые B (кроме NOT_FOUND)»
        follow_ups=after_each(
            TWO,
            {"action": "RETRY", "delay_seconds": 1800},  # «отложенной задачи на повтор через 30 минут»
            {"action": "JOURNAL", "what": "documents not synchronised"},  # «журнал несинхронизированных документов»
            {"action": "INCIDENT", "system": "ServiceNow"},  # «создание инцидента в ServiceNow»
        ),
    ),
    "NR.NSI.3": RobotProtocol(
        "validate_nsi_infrastructure",
        THREE,
        waits_s=(10, 30),  # «[10s, 30s] (без jitter - критично для инфраструктуры)», «Максимум попыток: 2»
        jitter_percent=0,
        repeated={"ERR_TEMPORARY_1C_UNAVAILABLE"},  # «Только ERR_TEMPORARY_1C_UNAVAILABLE»
        follow_ups=after_each(
            THREE,
            {"action": "FAIL_FAST"},  # «Немедленная остановка цепочки (fail-fast)»
            {"action": "TICKET", "system": "ITSM", "what": "mend by hand"},  # «задачи на ручное исправление в ITSM»
            {"action": "TELL", "recipient": "1C administrator", "level": "error"},  # «Уведомление администратору 1С»
        ),
    ),
    "NR.NSI.4": RobotProtocol(
        "create_stock_nomenclature_item",
        FOUR,
        waits_s=(3, 9, 27, 81),  # «[3s, 9s, 27s, 81s] ± 20% jitter», «Максимум попыток: 4»
        jitter_percent=20,
        repeated=set(FOUR) - {"ERR_BUSINESS_DUPLICATE_ITEM"},  # «Все ошибки, кроме DUPLICATE_ITEM»
        follow_ups={
            "ERR_TEMPORARY_DB_CONFLICT": A_PERSON,
            # «Для DUPLICATE_ITEM: возврат ссылки на существующий элемент»
            "ERR_BUSINESS_DUPLICATE_ITEM": [{"action": "RETURN_EXISTING"}],
            # «Для VALIDATION_FAILED: логирование с детальной диагностикой»
            "ERR_BUSINESS_VALIDATION_FAILED": [{"action": "JOURNAL", "what": "diagnostics"}],
            "ERR_CRITICAL_INTEGRATION_ERROR": THE_MANAGEMENT,
        },
    ),
    "NR.NSI.5": RobotProtocol(
        "create_scrap_nomenclature_item",
        FIVE,
        waits_s=(5, 25, 125),  # «Пакет - [5s, 25s, 125s]», «3 для всего пакета»
        jitter_percent=0,
        repeated={"ERR_TEMPORARY_BATCH_FAILURE"},  # no conditions there: those for all robots apply
        follow_ups={
            "ERR_BUSINESS_INVALID_SCRAP_TYPE": [JOURNAL_OF_FIVE],  # «Логирование статистики успехов/неудач»
            # «Для частичного успеха: продолжение с оставшимися элементами»
            "ERR_TEMPORARY_BATCH_FAILURE": [{"action": "CONTINUE_WITH_REST"}, JOURNAL_OF_FIVE],
            # «Автоматический split больших пакетов при MEMORY_OVERFLOW»
            "ERR_CRITICAL_MEMORY_OVERFLOW": [JOURNAL_OF_FIVE, {"action": "SPLIT_BATCH"}],
        },
    ),
    "NR.NSI.6": RobotProtocol(
        "setup_scrap_characteristics",
        SIX,
        waits_s=(15, 30, 45),  # «[15s, 30s, 45s] (длинные интервалы из-за блокировок)», «Максимум попыток: 3»
        jitter_percent=0,
        repeated=set(SIX) - {"ERR_CRITICAL_TEMPLATE_MISSING"},  # «Все ошибки, кроме TEMPLATE_MISSING»
        follow_ups=after_each(
            SIX,
            {"action": "MANUAL_MODE", "what": "configuration"},  # «Переход на ручной режим конфигурации»
            {"action": "TICKET", "what": "mend the characteristics"},  # «Создание задач на исправление характеристик»
            {"action": "BUFFER", "what": "values until they are mended"},  # «хранение значений в буфере до исправления»
        ),
    ),
    "NR.NSI.7": RobotProtocol(
        "validate_scrap_geometry_step",
        SEVEN,
        waits_s=(2, 4, 8),  # «Только для временных ошибок: [2s, 4s, 8s]», «3 для временных»
        jitter_percent=0,
        repeated={"ERR_TEMPORARY_CALCULATION_TIMEOUT"},  # «No Retry for Business Errors»
        follow_ups={
            "ERR_BUSINESS_STEP_VIOLATION": [  # «отклонение данных и уведомление технолога»
                {"action": "REJECT"},
                {"action": "TELL", "recipient": "technologist", "level": "error"},
            ],
            "ERR_BUSINESS_OUT_OF_RANGE": [{"action": "SUGGEST_NEAREST"}],  # «ближайшего допустимого значения»
            "ERR_TEMPORARY_CALCULATION_TIMEOUT": A_PERSON,
        },
    ),
    "NR.NSI.8": RobotProtocol(
        "link_stock_and_scrap_items",  # ours: the original has no heading
        EIGHT,
        waits_s=(0, 30),  # «Фаза 1: … (0s)», «Фаза 2: … (30s)», «Максимум попыток: 2»
        jitter_percent=0,
        repeated={"ERR_TEMPORARY_REFERENCE_INTEGRITY"},  # no conditions there: those for all robots apply
        follow_ups=after_each(
            EIGHT,
            {"action": "MANUAL_QUEUE", "what": "links to be settled by hand"},  # «в очередь на ручное согласование»
            {"action": "INCIDENT", "priority": "P2"},  # «Создание инцидента с приоритетом P2»
            {"action": "BACKUP", "what": "state of the links"},  # «Резервное копирование состояния связей»
        ),
    ),
    "NR.NSI.9": RobotProtocol(
        "track_nsi_creation_kpi",
        NINE,
        waits_s=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),  # «Бесконечно (с экспоненциальным ростом интервала)»
        jitter_percent=0,
        repeated={"ERR_TEMPORARY_METRICS_STORAGE_UNAVAILABLE"},  # no conditions there: those for all robots apply
        follow_ups=after_each(
            NINE,
            {"action": "DEGRADE", "what": "collect metrics only"},  # «режиме degraded (только сбор метрик)»
            # «Буферизация метрик в памяти до восстановления хранилища»
            {"action": "BUFFER", "what": "metrics until the store is back"},
            # «Принудительная запись на диск при достижении лимита памяти»
            {"action": "FLUSH_TO_DISK", "what": "metrics at the memory limit"},
        ),
        endless=True,
    ),
}


class Workshop:
    """A robot, and work that fails as often as it is told."""

    def __init__(
        self,
        policy: RobotPolicy | str,
        *,
        draw: Callable[[], float] = lambda: 0.5,  # no jitter
        states: StateStore | None = None,
        clock: FakeClock | None = None,
        sink: ActionSink | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.began = self.clock.now()
        self.sink = RecordingSink()
        self.noted: list[Mapping[str, Any]] = []
        self.calls: list[Call] = []
        self.times_s: list[float] = []  # of the calls, since the beginning
        policy = POLICIES[policy] if isinstance(policy, str) else policy
        ports = Ports(self.clock, draw, sink or self.sink, states, noted=self.noted.append)
        self.robot = Robot(policy, ports)

    def failing(self, code: str, times: int | None = None) -> Callable[[Call], str]:
        """Return work that fails with `code` so often, or always, and then has a result."""

        def work(call: Call) -> str:
            self.calls.append(call)
            self.times_s.append((self.clock.now() - self.began).total_seconds())
            if times is None or len(self.calls) <= times:
                raise RobotError(code, f"call {call.attempt} failed")
            return "result"

        return work

    @property
    def waits_s(self) -> list[float]:
        """Seconds between the calls."""
        return [after - before for before, after in zip(self.times_s, self.times_s[1:], strict=False)]


def seeds(count: int) -> list[Callable[[], float]]:
    return [random.Random(seed).random for seed in range(count)]
